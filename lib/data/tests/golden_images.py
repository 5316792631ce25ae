#!/usr/bin/env python3
"""Writes golden/images/: small image files, and what Pillow and transformers make of them and of computed images.

    python lib/data/tests/golden_images.py

files/ has one file for each format and colour space. decoded.json lists their pixels as transformers gets them from a path
(`load_image`: upright, then convert("RGB")) and from an image that the caller has opened (`convert_to_rgb`: on white).
resized.json and patches.json have SHA-256 hashes of the results for images that both sides compute (`computed`), and the sizes
of `smart_resize`. Needs transformers 5.24 and Pillow 13.
"""
import hashlib
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

HERE = Path(__file__).resolve().parent / "golden" / "images"
FILES = HERE / "files"
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
HALF = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)


def computed(width, height):
    """Noise, in every other block only 0 and 255."""
    y, x, c = np.meshgrid(*(np.arange(n, dtype=np.uint32) for n in (height, width, 3)), indexing="ij")
    n = x * np.uint32(374761393) + y * np.uint32(668265263) + c * np.uint32(2246822519)
    n = (n ^ (n >> np.uint32(13))) * np.uint32(1274126177)
    n = (n ^ (n >> np.uint32(16))) & np.uint32(255)
    hard = ((x // 5 + y // 3) % 2 == 0)
    return np.where(hard, np.where(n < 128, 0, 255), n).astype(np.uint8)


def smooth(width, height):
    """A gradient with a dark bar, as JPEG files keep it."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], axis=-1)
    image[height // 3:height // 2, width // 4:] //= 4
    return image.astype(np.uint8)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(name, width, height, depth, kind, rows, *chunks, interlaced=0):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced))
    data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows), 9))
    whole = b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + data + chunk(b"IEND", b"")
    (FILES / name).write_bytes(whole)


def pack(values, depth):
    """Packs the rows of [height, width] into bytes."""
    rows = []
    for row in values:
        bits = "".join(f"{int(value):0{depth}b}" for value in row)
        bits += "0" * (-len(bits) % 8)
        rows.append(bytes(int(bits[at:at + 8], 2) for at in range(0, len(bits), 8)))
    return rows


def tiff(name, pages, order="<"):
    """Writes a TIFF file; a page is a list of strips and a mapping of tags to lists of numbers."""
    out = bytearray(b"II*\0" if order == "<" else b"MM\0*")
    out += b"\0" * 4
    link = 4
    for strips, tags in pages:
        offsets = []
        for strip in strips:
            offsets.append(len(out))
            out += strip + b"\0" * (len(strip) % 2)
        tiled = 322 in tags
        tags = {**tags, (324 if tiled else 273): offsets, (325 if tiled else 279): [len(strip) for strip in strips]}
        values = {}
        for tag, numbers in sorted(tags.items()):
            data = struct.pack(order + f"{len(numbers)}" + ("H" if tag == 320 else "I"), *numbers)
            if tag == 320 or max(numbers) < 65536:
                kind, data = 3, struct.pack(order + f"{len(numbers)}H", *numbers)
            else:
                kind = 4
            if len(data) > 4:
                values[tag] = (kind, len(numbers), struct.pack(order + "I", len(out)))
                out += data + b"\0" * (len(data) % 2)
            else:
                values[tag] = (kind, len(numbers), data.ljust(4, b"\0"))
        out[link:link + 4] = struct.pack(order + "I", len(out))
        out += struct.pack(order + "H", len(values))
        for tag, (kind, count, data) in values.items():
            out += struct.pack(order + "HHI", tag, kind, count) + data
        link = len(out)
        out += b"\0" * 4
    (FILES / name).write_bytes(out)


def tags(width, height, bits, photometric, **more):
    own = {256: [width], 257: [height], 258: bits, 259: [1], 262: [photometric], 277: [len(bits)], 278: [height]}
    return {**own, **{int(key[1:]): value for key, value in more.items()}}


def group4(image):
    """The coded strip of a bilevel image, whose 1 is white."""
    file = io.BytesIO()
    image.save(file, "TIFF", compression="group4")
    saved = Image.open(file)
    assert saved.tag_v2[262] in (0, 1) and len(saved.tag_v2[273]) == 1
    at, length = saved.tag_v2[273][0], saved.tag_v2[279][0]
    return file.getvalue()[at:at + length], saved.tag_v2[262]


def png_files(noise, grey, alpha):
    height, width = grey.shape
    Image.fromarray(grey).save(FILES / "grey.png")
    Image.fromarray(np.dstack([grey, alpha])).save(FILES / "grey_alpha.png")
    Image.fromarray(noise).save(FILES / "rgb.png")
    Image.fromarray(np.dstack([noise, alpha])).save(FILES / "rgba.png")
    palette = chunk(b"PLTE", bytes(noise.reshape(-1)[:30]))
    alphas = chunk(b"tRNS", bytes(alpha.reshape(-1)[:7]))
    # Indices from 10 on are not in the palette.
    png("palette.png", width, height, 8, 3, pack(grey % 12, 8), palette)
    png("palette_alpha.png", width, height, 8, 3, pack(grey % 10, 8), palette, alphas)
    for depth in (1, 2, 4):
        png(f"grey{depth}.png", width, height, depth, 0, pack(grey >> (8 - depth), depth))
        png(f"palette{depth}.png", width, height, depth, 3, pack(grey % min(10, 1 << depth), depth), palette)
    png("grey_key.png", width, height, 8, 0, pack(grey, 8), chunk(b"tRNS", struct.pack(">H", int(grey[2, 3]))))
    key = struct.pack(">HHH", *map(int, noise[2, 3]))
    png("rgb_key.png", width, height, 8, 2, [bytes(row.reshape(-1)) for row in noise], chunk(b"tRNS", key))
    deep = (noise.astype(np.uint16) << 8) | noise[::-1]
    deep_alpha = (alpha.astype(np.uint16) << 8) | 99
    rows = lambda array: [row.astype(">u2").tobytes() for row in array]
    png("rgb16.png", width, height, 16, 2, rows(deep))
    png("rgba16.png", width, height, 16, 6, rows(np.dstack([deep, deep_alpha])))
    png("grey_alpha16.png", width, height, 16, 4, rows(np.dstack([deep[..., 0], deep_alpha])))
    png("grey16.png", width, height, 16, 0, rows(deep[..., 0]))
    adam7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    passes = [noise[y::dy, x::dx] for x, y, dx, dy in adam7]
    png("interlaced.png", width, height, 8, 2, [bytes(row.reshape(-1)) for own in passes if own.size for row in own],
        interlaced=1)
    frames = [Image.fromarray(noise), Image.fromarray(noise[::-1].copy())]
    frames[0].save(FILES / "animated.png", save_all=True, append_images=frames[1:])
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(noise[:3, :5].copy()).save(FILES / f"turned{orientation}.png", exif=exif)


def jpeg_files(image):
    picture = Image.fromarray(image)
    picture.convert("L").save(FILES / "grey.jpg")
    picture.save(FILES / "rgb.jpg", subsampling=0, quality=92)
    picture.save(FILES / "subsampled.jpg", subsampling=2, quality=92)
    picture.save(FILES / "progressive.jpg", subsampling=0, quality=92, progressive=True)
    picture.convert("CMYK").save(FILES / "cmyk.jpg", quality=92)
    for orientation in (6, 7):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(image[:16, :24].copy()).save(FILES / f"turned{orientation}.jpg", exif=exif, subsampling=0)


def tiff_files(noise, grey, alpha, image):
    height, width = grey.shape
    bilevel = Image.fromarray(grey > 100)
    Image.fromarray(noise).save(FILES / "rgb.tif")
    Image.fromarray(noise).save(FILES / "lzw.tif", compression="tiff_lzw", tiffinfo={317: 2})
    Image.fromarray(noise).save(FILES / "deflate.tif", compression="tiff_adobe_deflate", big_tiff=True)
    Image.fromarray(grey).save(FILES / "packbits.tif", compression="packbits")
    Image.fromarray(np.dstack([noise, alpha])).save(FILES / "rgba.tif")
    Image.fromarray(np.dstack([grey, alpha])).save(FILES / "grey_alpha.tif")
    Image.fromarray(noise).convert("CMYK").save(FILES / "cmyk.tif")
    Image.fromarray(image).save(FILES / "jpeg.tif", compression="jpeg", quality=92)
    Image.fromarray(grey.astype(np.uint16) * 257).save(FILES / "grey16.tif")
    bilevel.save(FILES / "bilevel.tif")
    bilevel.save(FILES / "group4.tif", compression="group4")
    data, photometric = group4(bilevel)
    tiff("group4_one_strip.tif", [([data], tags(width, height, [1], photometric, t259=[4], t278=[0xFFFFFFFF]))])
    tiff("group4_inverted.tif", [([data], tags(width, height, [1], 1 - photometric, t259=[4]))], order=">")
    reverse = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
    tiff("group4_reversed.tif", [([data.translate(reverse)], tags(width, height, [1], photometric, t259=[4], t266=[2]))])
    halves = [group4(bilevel.crop((0, top, width, min(top + 4, height))))[0] for top in range(0, height, 4)]
    tiff("group4_strips.tif", [(halves, tags(width, height, [1], photometric, t259=[4], t278=[4]))])
    rows = b"".join(pack(grey > 100, 1))
    tiff("white_is_zero.tif", [([rows], tags(width, height, [1], 0))])
    tiff("bilevel_reversed.tif", [([rows.translate(reverse)], tags(width, height, [1], 1, t266=[2]))])
    tiff("grey4.tif", [([b"".join(pack(grey >> 4, 4))], tags(width, height, [4], 0))])
    colours = [int(value) * 257 for value in noise.reshape(-1)[:48]]
    for order, name in (("<", "palette4.tif"), (">", "palette4_big.tif")):
        tiff(name, [([b"".join(pack(grey % 16, 4))], tags(width, height, [4], 3, t320=colours))], order)
    Image.fromarray(noise).quantize(20).save(FILES / "palette.tif", compression="tiff_lzw")
    deep = (noise.astype(np.uint16) << 8) | noise[::-1]
    for order, name in (("<", "rgb16.tif"), (">", "rgb16_big.tif")):
        tiff(name, [([deep.astype(order + "u2").tobytes()], tags(width, height, [16] * 3, 2))], order)
    planes = [noise[..., channel].tobytes() for channel in range(3)]
    tiff("planes.tif", [(planes, tags(width, height, [8] * 3, 2, t284=[2]))])
    premultiplied = (noise.astype(int) * alpha[..., None] // 255).astype(np.uint8)
    tiff("premultiplied.tif", [([np.dstack([premultiplied, alpha]).tobytes()], tags(width, height, [8] * 4, 2, t338=[1]))])
    tiff("fourth_sample.tif", [([np.dstack([noise, alpha]).tobytes()], tags(width, height, [8] * 4, 2, t338=[0]))])
    big = computed(37, 21)
    tiles = [np.pad(big, ((0, 11), (0, 11), (0, 0)))[y:y + 16, x:x + 16].tobytes() for y in (0, 16) for x in (0, 16, 32)]
    tiff("tiles.tif", [(tiles, {**tags(37, 21, [8] * 3, 2), 322: [16], 323: [16]})])
    pages = [noise, grey, computed(4, 9)]
    pages = [([page.tobytes()], tags(page.shape[1], page.shape[0], [8] * (page.size // (page.shape[0] * page.shape[1])),
                                     2 if page.ndim == 3 else 1)) for page in pages]
    tiff("pages.tif", pages)
    for orientation in range(1, 9):
        tiff(f"turned{orientation}.tif", [([noise[:3, :5].tobytes()], tags(5, 3, [8] * 3, 2, t274=[orientation]))])


def decoded():
    cases = []
    for path in sorted(FILES.iterdir()):
        for page in range(3 if path.name == "pages.tif" else 1):
            image = Image.open(path)
            image.seek(page)
            expected = np.array(load_image(image))
            on_white = convert_to_rgb(ImageOps.exif_transpose(image), return_numpy=True)
            if image.mode.startswith("I;16"):
                # Pillow clips at 255; longhaul takes the high byte, as Pillow does of colours.
                expected = on_white = np.repeat(np.array(image)[..., None] >> 8, 3, axis=-1).astype(np.uint8)
            case = {"file": path.name, "page": page, "width": expected.shape[1], "height": expected.shape[0],
                    "pixels": expected.tobytes().hex()}
            if not np.array_equal(expected, on_white):
                case["on_white"] = on_white.tobytes().hex()
            cases.append(case)
    return cases


def resized():
    sizes = [(1, 1, 1, 1), (1, 1, 5, 7), (1, 1, 256, 256), (3, 5, 64, 64), (2, 2, 3, 1), (100, 20, 576, 128),
             (300, 200, 64, 32), (300, 200, 300, 64), (300, 200, 64, 200), (257, 131, 256, 132), (10000, 60, 512, 3),
             (10000, 60, 3296, 32), (60, 10000, 32, 3296), (4, 4000, 5, 33), (1000, 1000, 1, 1), (1275, 1650, 512, 663),
             (640, 480, 1280, 960)]
    # Pillow 13 begins with the vertical pass if more than twice as many rows as columns go.
    sizes += [(50, 100, 40, 80), (50, 100, 40, 79), (30, 40, 60, 39), (30, 40, 60, 41), (95, 90, 93, 85)]
    cases = []
    for width, height, to_width, to_height in sizes:
        image = Image.fromarray(computed(width, height))
        for name, filter in (("bicubic", Image.BICUBIC), ("lanczos", Image.LANCZOS)):
            found = np.array(image.resize((to_width, to_height), filter))
            cases.append({"from": [width, height], "to": [to_width, to_height], "filter": name, "hash": digest(found)})
    return cases


CONFIGS = {
    "qwen3": dict(patch_size=16, size={"shortest_edge": 65536, "longest_edge": 16777216}, **HALF),
    "qwen2": dict(patch_size=14, size={"shortest_edge": 3136, "longest_edge": 1003520}, **CLIP),
    "tiny": dict(patch_size=8, size={"shortest_edge": 256, "longest_edge": 65536}, resample=1, **CLIP),
    "plain": dict(patch_size=4, merge_size=1, temporal_patch_size=1, size={"shortest_edge": 16, "longest_edge": 4096},
                  rescale_factor=0.01, **HALF),
}
SIZES = [(1, 1), (33, 33), (48, 16), (100, 20), (80, 112), (400, 300), (2000, 10), (60, 10000), (10000, 60), (511, 37)]
LIMITS = [("qwen3", 100, None, 80), ("qwen3", 1275, 512, 1280), ("qwen3", 2000, 1999, 1280), ("tiny", 600, 300, 40)]


def processed(name, image, tokens=1280):
    config = dict(CONFIGS[name])
    factor = config["patch_size"] * config.get("merge_size", 2)
    longest = min(config["size"]["longest_edge"], tokens * factor * factor)
    config["size"] = {**config["size"], "longest_edge": longest}
    processor = Qwen2VLImageProcessorPil(**config)
    found = processor(images=[image], return_tensors="np")
    frames, side = processor.temporal_patch_size, processor.patch_size
    rows = found["pixel_values"].reshape(-1, 3, frames, side * side)
    assert rows.dtype == np.float32 and all(np.array_equal(rows[:, :, 0], rows[:, :, frame]) for frame in range(frames))
    rows = np.ascontiguousarray(rows[:, :, 0])
    return {"config": name, "grid": found["image_grid_thw"][0].tolist(), "first": rows.reshape(-1)[:8].astype(float).tolist(),
            "hash": digest(rows)}


def patches():
    cases = [{"size": size, **processed(name, Image.fromarray(computed(*size)))} for name in CONFIGS for size in SIZES]
    for name, width, max_width, tokens in LIMITS:
        image = Image.fromarray(computed(width, width * 4 // 3))
        size = image.size
        if max_width and width > max_width:
            image = image.resize((max_width, (size[1] * max_width + width // 2) // width), Image.LANCZOS)
        cases.append({"size": size, "max_width": max_width, "max_image_tokens": tokens, **processed(name, image, tokens)})
    return cases


def sizes():
    """Hashes of the results of smart_resize for many sizes, width and height as little-endian 32 bits."""
    cases = []
    for factor, least, most in [(32, 65536, 16777216), (28, 3136, 1003520), (32, 65536, 131072), (16, 256, 4096), (1, 7, 900)]:
        found = bytearray()
        for width in range(1, 700, 3):
            for height in range(1, 700, 3):
                try:
                    pair = smart_resize(height, width, factor, least, most)[::-1]
                except ValueError:
                    pair = (0, 0)
                found += struct.pack("<II", *pair)
        cases.append({"factor": factor, "min": least, "max": most, "hash": hashlib.sha256(found).hexdigest()})
    return cases


def write(name, cases):
    with open(HERE / name, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")


def main():
    FILES.mkdir(parents=True, exist_ok=True)
    noise = computed(13, 7)
    grey, alpha = computed(14, 8)[1:, 1:, 0], computed(15, 7)[:, 2:, 2]
    alpha = np.where(alpha == 0, 1, alpha).astype(np.uint8)
    alpha[0, :3] = [0, 255, 128]
    png_files(noise, grey.copy(), alpha)
    jpeg_files(smooth(61, 43))
    tiff_files(noise, grey.copy(), alpha, smooth(61, 43))
    write("decoded.json", decoded())
    write("resized.json", resized())
    write("patches.json", patches())
    write("sizes.json", sizes())
    for name, config in CONFIGS.items():
        folder = HERE / "processors" / name
        folder.mkdir(parents=True, exist_ok=True)
        Qwen2VLImageProcessorPil(**config).save_pretrained(folder)


if __name__ == "__main__":
    main()
