"""From a study to its stages: what each makes, under which id, and what does not fit before anything runs."""
