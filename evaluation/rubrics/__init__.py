"""Free text, judged by another model against criteria that people wrote. Never a medical verdict."""
