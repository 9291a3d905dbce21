"""What a person sees: lines, tables and progress in a terminal."""
