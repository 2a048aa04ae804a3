"""One folder for each device; a stage of the compiler never names one of them."""
