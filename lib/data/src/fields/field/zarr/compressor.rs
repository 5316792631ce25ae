//! Decompresses chunks. Their bytes are untrusted, so no more memory is allocated than the compressed data can fill.

use std::io::Read;

/// The compressor of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    /// Uncompressed.
    None,
    /// zlib.
    Zlib,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// Blosc, with BloscLZ or LZ4 as the inner codec.
    Blosc,
}

impl Compressor {
    /// Looks up a compressor by its id in the Zarr metadata and, for Blosc, by the inner codec.
    pub fn of(id: &str, inside: &str) -> Option<Self> {
        Some(match (id, inside) {
            ("zlib", _) => Self::Zlib,
            ("gzip", _) => Self::Gzip,
            ("zstd", _) => Self::Zstd,
            ("blosc", "lz4" | "lz4hc" | "blosclz") => Self::Blosc,
            _ => return None,
        })
    }

    /// Upper bound on the compression ratio, slightly above what the formats allow.
    pub fn most(self) -> u64 {
        match self {
            Self::None => 1,
            Self::Zlib | Self::Gzip | Self::Blosc => 1100,
            Self::Zstd => 50_000,
        }
    }

    /// Decompresses a chunk, which should have `size` bytes; `None` when it is damaged.
    pub fn decompress(self, packed: Vec<u8>, size: usize) -> Option<Vec<u8>> {
        if size as u64 > (packed.len() as u64).saturating_mul(self.most()) {
            return None;
        }
        match self {
            Self::None => Some(packed),
            Self::Blosc => decompress_blosc(&packed, size),
            Self::Zlib => decompress(flate2::read::ZlibDecoder::new(&*packed), size),
            Self::Gzip => decompress(flate2::read::GzDecoder::new(&*packed), size),
            Self::Zstd => decompress(ruzstd::decoding::StreamingDecoder::new(&*packed).ok()?, size),
        }
    }
}

/// Decompresses at most `size` + 1 bytes, so that the caller notices excess data.
fn decompress(from: impl Read, size: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(size as u64 + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Decompresses a Blosc chunk of `size` bytes; `None` when it is damaged.
fn decompress_blosc(packed: &[u8], size: usize) -> Option<Vec<u8>> {
    let (mut decompressed, mut read, mut block) = (0, 0, 0);
    if packed.len() < 16 {
        return None;
    }
    // SAFETY: reads at most 16 bytes, which exist.
    unsafe {
        blosc_src::blosc_cbuffer_sizes(
            packed.as_ptr().cast(),
            &mut decompressed,
            &mut read,
            &mut block,
        );
    }
    if decompressed != size || read != packed.len() {
        return None;
    }
    let mut out = vec![0u8; size];
    // SAFETY: the library trusts the sizes in the header, which were just checked against the slices; it reads within
    // `packed` and writes at most `size` bytes.
    let written = unsafe {
        let (from, to) = (packed.as_ptr().cast(), out.as_mut_ptr().cast());
        blosc_src::blosc_decompress_ctx(from, to, size, 1)
    };
    (usize::try_from(written) == Ok(size)).then_some(out)
}
