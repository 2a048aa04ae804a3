"""The opts that a kernel gets when neither the user nor a search names any. Entry: `default.choose_opts`."""
