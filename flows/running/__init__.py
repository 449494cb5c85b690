"""What carries out a plan: stages through Prefect and Ray, as early as their inputs and the cores allow."""
