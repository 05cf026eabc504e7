-- Beside Prefect's database, which PostgreSQL's first start makes.
CREATE DATABASE mlflow;
