"""The kernel transforms, one file each: legality (`check_x`), application (`apply_x`), candidates (`x_candidates`)."""
