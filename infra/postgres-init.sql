-- The database `prefect` is made by the image; this one beside it.
create database mlflow owner reread;
