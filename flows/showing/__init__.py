"""What a person sees of a run: live on the terminal, and on its pages in Prefect."""
