"""The three local services, Prefect's API, MLflow's pages and the process that serves our flows: starting, watching,
stopping them, and whether they are well. What `reread up`, `down` and `status` are made of."""
