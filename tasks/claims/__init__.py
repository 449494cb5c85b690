"""Published figures as data: what the papers print, what follows from it, and where they contradict themselves."""
