"""Claims: the advice people find, judged on their own config by predicting it with and without."""
