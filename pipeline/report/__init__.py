"""What people look at: tables, figures, MLflow runs, reports."""
