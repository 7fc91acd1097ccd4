"""What the format of this plugin does, in words. Imports nothing: `oakleaf export --help` reads it."""

EXPORTS = {"minutes": "Who said what, one line each."}
