"""Training programs of images and volumes, for `bench/programs.py`. In: a library, its `F`, what a program is given,
and sizes. Out: the loss."""

from __future__ import annotations

from typing import Any

from bench.program_kit import Given, Library, program


@program(batch=(4, 1, 1), side=(64, 32, 16), channels=(32, 16, 8))
def unet3d(ops: Library, F: Any, given: Given, batch: int, side: int, channels: int) -> Any:
    """3-D U-Net with instance norm and a Dice loss."""
    classes = 3

    def block(x: Any, name: str, entering: int, leaving: int) -> Any:
        weight = given.parameter(f"{name}.weight", leaving, entering, 3, 3, 3)
        x = F.conv3d(x, weight, given.parameter(f"{name}.bias", leaving), padding=1)
        return F.leaky_relu(F.instance_norm(x), 0.01)

    def shrink(x: Any, name: str, entering: int) -> Any:
        return F.conv3d(x, given.parameter(name, 2 * entering, entering, 2, 2, 2), stride=2)

    def grow(x: Any, name: str, leaving: int) -> Any:
        return F.conv_transpose3d(x, given.parameter(name, 2 * leaving, leaving, 2, 2, 2), stride=2)

    top = block(given.values("volumes", batch, 2, side, side, side), "top", 2, channels)
    middle = block(shrink(top, "shrink_top", channels), "middle", 2 * channels, 2 * channels)
    bottom = block(shrink(middle, "shrink_middle", 2 * channels), "bottom", 4 * channels, 4 * channels)
    risen = ops.cat([grow(bottom, "grow_bottom", 2 * channels), middle], 1)
    risen = block(risen, "risen_middle", 4 * channels, 2 * channels)
    risen = ops.cat([grow(risen, "grow_middle", channels), top], 1)
    risen = block(risen, "risen_top", 2 * channels, channels)
    logits = F.conv3d(risen, given.parameter("head", classes, channels, 1, 1, 1))
    found = ops.softmax(ops.widen(logits), 1)
    target = F.one_hot(given.integers("classes", classes, batch, side, side, side), classes)
    target = ops.widen(target.permute(0, 4, 1, 2, 3))
    shared = (found * target).sum((2, 3, 4))
    total = found.sum((2, 3, 4)) + target.sum((2, 3, 4))
    return 1 - ((2 * shared + 1) / (total + 1)).mean()


@program(batch=(64, 2, 2), channels=(128, 64, 16), side=(48, 48, 16))
def edsr(ops: Library, F: Any, given: Given, batch: int, channels: int, side: int) -> Any:
    """EDSR super-resolution: scaled residual blocks and a pixel shuffle."""

    def convolve(x: Any, name: str, leaving: int, has_bias: bool = False) -> Any:
        bias = given.parameter(f"{name}.bias", leaving) if has_bias else None
        return F.conv2d(x, given.parameter(f"{name}.weight", leaving, x.shape[1], 3, 3), bias, padding=1)

    stem = convolve(given.values("images", batch, 3, side, side), "stem", channels)
    x = stem
    for block in range(4):
        hidden = F.relu(convolve(x, f"first{block}", channels, has_bias=True))
        x = x + 0.1 * convolve(hidden, f"second{block}", channels)
    x = F.pixel_shuffle(convolve(stem + x, "grow", 4 * channels), 2)
    difference = ops.widen(convolve(x, "head", 3)) - ops.widen(given.values("target", batch, 3, 2 * side, 2 * side))
    return ops.abs(difference).mean()


@program(batch=(16, 1, 1), side=(512, 256, 128), channels=(64, 32, 8))
def deeplab(ops: Library, F: Any, given: Given, batch: int, side: int, channels: int) -> Any:
    """DeepLab: dilated convolutions and an image-wide mean side by side, then bilinear interpolation."""
    classes = 21
    x = given.values("images", batch, 3, side, side)
    for level in range(3):
        weight = given.parameter(f"stem{level}", channels << level, x.shape[1], 3, 3)
        x = F.relu(F.conv2d(x, weight, stride=2, padding=1))
    entering = 4 * channels
    parts = [F.conv2d(x, given.parameter("point", channels, entering, 1, 1))]
    for dilation in (6, 12, 18):
        weight = given.parameter(f"dilated{dilation}", channels, entering, 3, 3)
        parts.append(F.relu(F.conv2d(x, weight, padding=dilation, dilation=dilation)))
    pooled = F.conv2d(x.mean((2, 3), keepdim=True), given.parameter("pooled", channels, entering, 1, 1))
    parts.append(pooled.expand(batch, channels, x.shape[2], x.shape[3]))
    joined = F.relu(F.conv2d(ops.cat(parts, 1), given.parameter("project", channels, 5 * channels, 1, 1)))
    logits = F.conv2d(joined, given.parameter("head", classes, channels, 1, 1))
    logits = F.interpolate(logits, size=(side, side), mode="bilinear")
    return F.cross_entropy(ops.widen(logits), given.integers("classes", classes, batch, side, side))


@program(batch=(64, 4, 2), side=(56, 28, 16), channels=240)
def shuffle_net(ops: Library, F: Any, given: Given, batch: int, side: int, channels: int) -> Any:
    """ShuffleNet: grouped pointwise convolutions with a channel shuffle, and a depthwise one between."""
    groups, hidden = 3, channels // 4
    x = given.values("images", batch, channels, side, side)
    for block in range(3):
        y = F.relu(F.conv2d(x, given.parameter(f"enter{block}", hidden, channels // groups, 1, 1), groups=groups))
        y = y.reshape(batch, groups, hidden // groups, side, side).transpose(1, 2).reshape(batch, hidden, side, side)
        y = F.conv2d(y, given.parameter(f"depthwise{block}", hidden, 1, 3, 3), padding=1, groups=hidden)
        y = F.conv2d(y, given.parameter(f"leave{block}", channels, hidden // groups, 1, 1), groups=groups)
        x = F.relu(x + y)
    return (ops.widen(x) ** 2).mean()


@program(batch=(32, 2, 2), side=(112, 56, 28))
def regnet(ops: Library, F: Any, given: Given, batch: int, side: int) -> Any:
    """RegNet: grouped convolutions between pointwise ones, with squeeze and excitation."""
    group_width, squeezed = 16, 16

    def pointwise(x: Any, name: str, leaving: int, stride: int = 1) -> Any:
        return F.conv2d(x, given.parameter(name, leaving, x.shape[1], 1, 1), stride=stride)

    x = given.values("images", batch, 64, side, side)
    for stage, channels in enumerate((128, 192)):
        y = F.relu(pointwise(x, f"enter{stage}", channels))
        weight = given.parameter(f"grouped{stage}", channels, group_width, 3, 3)
        y = F.relu(F.conv2d(y, weight, stride=2, padding=1, groups=channels // group_width))
        gate = F.relu(pointwise(y.mean((2, 3), keepdim=True), f"squeeze{stage}", squeezed))
        gate = ops.sigmoid(pointwise(gate, f"excite{stage}", channels))
        y = pointwise(y * gate, f"leave{stage}", channels)
        x = F.relu(y + pointwise(x, f"shortcut{stage}", channels, stride=2))
    return (ops.widen(x) ** 2).mean()


@program(batch=(32, 4, 2), channels=(64, 64, 8), side=(32, 32, 8))
def modulated_convolutions(ops: Library, F: Any, given: Given, batch: int, channels: int, side: int) -> Any:
    """StyleGAN's modulated convolutions: weights of each image, as groups of one convolution."""
    x, latent = given.values("images", batch, channels, side, side), given.values("latent", batch, 64)
    for layer in range(2):
        style = F.linear(
            latent, given.parameter(f"style{layer}", channels, 64), given.parameter(f"bias{layer}", channels)
        )
        weight = given.parameter(f"weight{layer}", channels, channels, 3, 3).unsqueeze(0)
        weight = weight * (style + 1).reshape(batch, 1, channels, 1, 1)
        norm = (ops.widen(weight) ** 2).sum((2, 3, 4), keepdim=True)
        weight = (weight * ops.rsqrt(norm + 1e-8).to(weight.dtype)).reshape(batch * channels, channels, 3, 3)
        x = F.conv2d(x.reshape(1, batch * channels, side, side), weight, padding=1, groups=batch)
        x = F.leaky_relu(x.reshape(batch, channels, side, side), 0.2)
    return (ops.widen(x) ** 2).mean()


@program(batch=(64, 16, 4), side=(64, 64, 16), channels=(64, 32, 8))
def vae(ops: Library, F: Any, given: Given, batch: int, side: int, channels: int) -> Any:
    """Variational autoencoder of images: binary cross entropy and the divergence of the latent."""
    latent = 128
    x = given.values("images", batch, 3, side, side)
    y = F.relu(F.conv2d(x, given.parameter("encode0", channels, 3, 4, 4), stride=2, padding=1))
    y = F.relu(F.conv2d(y, given.parameter("encode1", 2 * channels, channels, 4, 4), stride=2, padding=1))
    y = y.reshape(batch, -1)
    mean = F.linear(y, given.parameter("mean", latent, y.shape[1]))
    log_variance = F.linear(y, given.parameter("log_variance", latent, y.shape[1]))
    sampled = mean + ops.exp(0.5 * log_variance) * given.values("noise", batch, latent)
    y = F.linear(sampled, given.parameter("spread", 2 * channels * (side // 4) ** 2, latent))
    y = y.reshape(batch, 2 * channels, side // 4, side // 4)
    y = F.relu(F.conv_transpose2d(y, given.parameter("decode1", 2 * channels, channels, 4, 4), stride=2, padding=1))
    y = F.conv_transpose2d(y, given.parameter("decode0", channels, 3, 4, 4), stride=2, padding=1)
    target = ops.widen(ops.widen(x) > 0)
    rebuilt = F.binary_cross_entropy_with_logits(ops.widen(y), target, reduction="sum")
    mean, log_variance = ops.widen(mean), ops.widen(log_variance)
    divergence = -0.5 * (1 + log_variance - mean**2 - ops.exp(log_variance)).sum()
    return (rebuilt + divergence) / batch


@program(batch=(16, 1, 1), side=(64, 32, 8), channels=(256, 128, 32))
def dense_detector(ops: Library, F: Any, given: Given, batch: int, side: int, channels: int) -> Any:
    """Dense detector: a focal loss of the classes and an IoU loss of the boxes of each pixel."""
    classes, pixels = 80, side * side
    x = given.values("features", batch, channels, side, side)
    x = F.relu(F.group_norm(F.conv2d(x, given.parameter("tower", channels, channels, 3, 3), padding=1), 8))

    def head(name: str, leaving: int) -> Any:
        found = ops.widen(F.conv2d(x, given.parameter(name, leaving, channels, 3, 3), padding=1))
        return found.permute(0, 2, 3, 1).reshape(batch, pixels, leaving)

    logits = head("class_head", classes)
    target = ops.widen(F.one_hot(given.integers("classes", classes, batch, pixels), classes))
    chance = ops.sigmoid(logits)
    entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    right = chance * target + (1 - chance) * (1 - target)
    focal = ((0.25 * target + 0.75 * (1 - target)) * (1 - right) ** 2 * entropy).sum() / pixels
    # The distances of a pixel to the sides of its box: left, top, right, bottom.
    box = ops.exp(head("box_head", 4).clamp(-4, 4))
    wanted = ops.exp(ops.widen(given.values("boxes", batch, pixels, 4)) * 0.1)
    width = ops.minimum(box[..., 0], wanted[..., 0]) + ops.minimum(box[..., 2], wanted[..., 2])
    height = ops.minimum(box[..., 1], wanted[..., 1]) + ops.minimum(box[..., 3], wanted[..., 3])
    shared = width * height
    areas = (box[..., 0] + box[..., 2]) * (box[..., 1] + box[..., 3])
    areas = areas + (wanted[..., 0] + wanted[..., 2]) * (wanted[..., 1] + wanted[..., 3])
    return focal + (1 - shared / (areas - shared + 1e-6)).mean()


@program(batch=(64, 4, 2), channels=(64, 32, 8), side=(56, 56, 14))
def weight_standardisation(ops: Library, F: Any, given: Given, batch: int, channels: int, side: int) -> Any:
    """Standardised weights, global response norms and average pools."""
    x = given.values("images", batch, channels, side, side)
    for layer in range(3):
        weight = ops.widen(given.parameter(f"weight{layer}", channels, channels, 3, 3))
        centred = weight - weight.mean((1, 2, 3), keepdim=True)
        weight = centred / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        y = F.conv2d(x, weight.to(x.dtype) * 0.05, padding=1)
        response = ops.sqrt((ops.widen(y) ** 2).sum((2, 3), keepdim=True) + 1e-6)
        y = y + y * (response / (response.mean(1, keepdim=True) + 1e-6)).to(y.dtype)
        x = F.avg_pool2d(F.relu(y), 3, stride=1, padding=1) + x
    return (ops.widen(F.adaptive_avg_pool2d(x, 1)) ** 2).mean()


@program(batch=(64, 4, 2), side=(64, 64, 16), channels=(64, 16, 8))
def wavelets(ops: Library, F: Any, given: Given, batch: int, side: int, channels: int) -> Any:
    """Haar wavelets by slices, a convolution of their coefficients, and the image built back."""
    x = given.values("images", batch, channels, side, side)
    a, b = x[:, :, 0::2, 0::2], x[:, :, 0::2, 1::2]
    c, d = x[:, :, 1::2, 0::2], x[:, :, 1::2, 1::2]
    bands = ops.cat([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d], 1) * 0.5
    weight = given.parameter("bands", 4 * channels, 4 * channels, 3, 3)
    mean, across, down, diagonal = F.relu(F.conv2d(bands, weight, padding=1)).chunk(4, 1)
    upper = ops.stack([mean + across, mean - across], -1).reshape(batch, channels, side // 2, side)
    lower = ops.stack([down + diagonal, down - diagonal], -1).reshape(batch, channels, side // 2, side)
    built = ops.stack([upper, lower], 3).reshape(batch, channels, side, side)
    found = F.conv2d(built, given.parameter("head", channels, channels, 3, 3), padding=1)
    return (ops.widen(found - x) ** 2).mean()


@program(batch=(64, 4, 2), side=(64, 64, 16))
def structural_similarity(ops: Library, F: Any, given: Given, batch: int, side: int) -> Any:
    """SSIM with Gaussian windows, and total variation."""
    x = ops.sigmoid(ops.widen(given.parameter("images", batch, 3, side, side, scale=1.0)))
    y = ops.sigmoid(ops.widen(given.values("target", batch, 3, side, side)))
    line = ops.exp(-((ops.widen(ops.arange(11)) - 5) ** 2) / 4.5)
    line = line / line.sum()
    window = (line.reshape(-1, 1) * line.reshape(1, -1)).reshape(1, 1, 11, 11).expand(3, 1, 11, 11).contiguous()

    def blur(image: Any) -> Any:
        return F.conv2d(image, window, padding=5, groups=3)

    mean_x, mean_y = blur(x), blur(y)
    variance_x, variance_y = blur(x * x) - mean_x * mean_x, blur(y * y) - mean_y * mean_y
    covariance = blur(x * y) - mean_x * mean_y
    above = (2 * mean_x * mean_y + 1e-4) * (2 * covariance + 9e-4)
    below = (mean_x**2 + mean_y**2 + 1e-4) * (variance_x + variance_y + 9e-4)
    similarity = (above / below).mean()
    variation = ops.abs(x[:, :, 1:] - x[:, :, :-1]).mean() + ops.abs(x[:, :, :, 1:] - x[:, :, :, :-1]).mean()
    return 1 - similarity + 0.1 * variation


@program(batch=(32, 2, 1), side=(64, 32, 8), channels=(64, 32, 8))
def involution(ops: Library, F: Any, given: Given, batch: int, side: int, channels: int) -> Any:
    """Involution: windows taken by unfold, weighted by a kernel that each pixel has of its own."""
    group = 8
    x = given.values("images", batch, channels, side, side)
    kernels = F.conv2d(x, given.parameter("kernels", 9 * (channels // group), channels, 1, 1))
    kernels = kernels.reshape(batch, channels // group, 1, 9, side * side)
    windows = F.unfold(x, 3, padding=1).reshape(batch, channels // group, group, 9, side * side)
    y = (windows * kernels).sum(3).reshape(batch, channels, side, side)
    return (ops.widen(F.conv2d(y, given.parameter("head", channels, channels, 1, 1))) ** 2).mean()


@program(batch=(128, 4, 2), channels=(64, 32, 8), side=(32, 32, 8))
def dense_blocks(ops: Library, F: Any, given: Given, batch: int, channels: int, side: int) -> Any:
    """DenseNet's blocks: batch norms, and channels that are joined again and again."""
    hidden, growth = 64, 16

    def activated(x: Any) -> Any:
        return F.relu(F.batch_norm(x, None, None, training=True))

    x = given.values("images", batch, channels, side, side)
    for block in range(4):
        y = F.conv2d(activated(x), given.parameter(f"enter{block}", hidden, x.shape[1], 1, 1))
        y = F.conv2d(activated(y), given.parameter(f"leave{block}", growth, hidden, 3, 3), padding=1)
        x = ops.cat([x, y], 1)
    x = F.avg_pool2d(F.conv2d(x, given.parameter("transition", channels, x.shape[1], 1, 1)), 2)
    return (ops.widen(x) ** 2).mean()
