"""Output for people: tables, figures, MLflow runs, reports."""
