"""Pictures: one file for each, drawn without a screen; black is the colour of the page's text."""
