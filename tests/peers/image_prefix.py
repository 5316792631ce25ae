"""Sequences that begin with an image, for decoder_update.py and generation.py (lib/tasks/examples/image_prefix in Rust)."""
import numpy

# The layers of tower and decoder with LoRA: those of attention and feed-forward networks, but not the mergers.
ADAPTED = r".*\.(attn|self_attn|mlp)\.(qkv|linear_fc\d|\w*proj)"
# Options of the programs that have other defaults with images.
DEFAULTS = {"wide": 256, "vocabulary": 262}
# The number from which on pseudorandom numbers are pixels; tokens have smaller ones.
PIXELS = 1 << 40


def grid(text):
    """Reads ROWSxCOLUMNS."""
    rows, columns = map(int, text.split("x"))
    return rows, columns


def parsed(parser):
    """The options, with the defaults for images if there are any."""
    arguments = parser.parse_args()
    if arguments.image:
        parser.set_defaults(**DEFAULTS)
    return parser.parse_args()


def model_class(a):
    import transformers

    return transformers.Qwen3VLForConditionalGeneration if a.image else transformers.AutoModelForCausalLM


def tiny(a, tied=True, **options):
    """The configuration of a small Qwen3-VL: a tower of two blocks before a decoder of the size that `a` says."""
    from transformers import Qwen3VLConfig

    rope = dict(rope_type="default", rope_theta=1e4, mrope_section=[6, 5, 5], mrope_interleaved=True)
    text = dict(vocab_size=a.vocabulary, hidden_size=a.hidden, intermediate_size=a.wide, num_hidden_layers=a.depth,
                num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, head_dim=a.head, rope_parameters=rope, **options)
    vision = dict(depth=2, hidden_size=128, num_heads=4, intermediate_size=256, out_hidden_size=a.hidden, patch_size=8,
                  num_position_embeddings=256, deepstack_visual_indexes=[0])
    ids = dict(zip(("vision_start", "vision_end", "image", "video"), range(a.vocabulary - 4, a.vocabulary)))
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied,
                         **{f"{name}_token_id": number for name, number in ids.items()})


def mixed(first, count):
    """The output function of SplitMix64 for `count` numbers from `first` on."""
    with numpy.errstate(over="ignore"):
        x = (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(first + 1)) * numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return x ^ (x >> numpy.uint64(31))


class ImagePrefix:
    """An image in front of the text of each sequence, or nothing."""

    def __init__(self, config, image):
        self.image, self.tokens, self.text = image, [], config.get_text_config().vocab_size
        if image:
            self.vision = config.vision_config
            start, end, token = config.vision_start_token_id, config.vision_end_token_id, config.image_token_id
            self.tokens = [start, *[token] * (image[0] * image[1] // self.vision.spatial_merge_size**2), end]
            self.text = min(start, end, token, config.video_token_id)

    def inputs(self, ids, first):
        """The inputs of the model for sequences of text, whose first tokens become those of images from number `first` on."""
        import torch

        if not self.image:
            return {"input_ids": ids}
        count, size, frames = len(ids), self.vision.patch_size, self.vision.temporal_patch_size
        ids[:, : len(self.tokens)] = torch.tensor(self.tokens)
        types = torch.zeros_like(ids)
        types[:, 1 : len(self.tokens) - 1] = 1
        patches = count * self.image[0] * self.image[1]
        per_image = patches // count * 3 * size * size
        values = (mixed(PIXELS + first * per_image, count * per_image) >> numpy.uint64(40)).astype(numpy.float32) / 2**23 - 1
        # As from the image processor: both frames of a patch are the same.
        values = torch.from_numpy(values).view(patches, 3, 1, size * size).expand(-1, -1, frames, -1)
        return {"input_ids": ids, "mm_token_type_ids": types, "pixel_values": values.reshape(patches, -1),
                "image_grid_thw": torch.tensor([[1, *self.image]] * count)}
