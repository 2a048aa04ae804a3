"""AMD cards: kernels as HIP C++ text. Nothing here has been run on a card."""
