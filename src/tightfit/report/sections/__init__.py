"""Sections of a report: what is known of a run, as the words and tables that a page shows."""
