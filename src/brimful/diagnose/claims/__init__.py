"""Claims: common advice, judged on the user's own config by predicting it with and without."""
