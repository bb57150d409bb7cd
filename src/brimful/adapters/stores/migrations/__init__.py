"""How a database of an older brimful becomes one of this. Numbered; a number is never reused or changed."""
