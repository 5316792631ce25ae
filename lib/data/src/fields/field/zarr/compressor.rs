//! What chunks are compressed by. Their bytes are not to be trusted: no more memory is taken than what is
//! packed can hold.

use std::io::Read;

/// A compressor of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    /// Bytes as they are.
    None,
    /// zlib.
    Zlib,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// Blosc, with BloscLZ or LZ4 inside.
    Blosc,
}

impl Compressor {
    /// By its name in a description of Zarr and, for Blosc, what is inside.
    pub fn of(id: &str, inside: &str) -> Option<Self> {
        Some(match (id, inside) {
            ("zlib", _) => Self::Zlib,
            ("gzip", _) => Self::Gzip,
            ("zstd", _) => Self::Zstd,
            ("blosc", "lz4" | "lz4hc" | "blosclz") => Self::Blosc,
            _ => return None,
        })
    }

    /// So many times its size is what is packed at most; a little more than the formats allow.
    pub fn most(self) -> u64 {
        match self {
            Self::None => 1,
            Self::Zlib | Self::Gzip | Self::Blosc => 1100,
            Self::Zstd => 50_000,
        }
    }

    /// What was packed, which should be `size` bytes; `None` when it is damaged.
    pub fn unpack(self, packed: Vec<u8>, size: usize) -> Option<Vec<u8>> {
        if size as u64 > (packed.len() as u64).saturating_mul(self.most()) {
            return None;
        }
        match self {
            Self::None => Some(packed),
            Self::Blosc => unpack_blosc(&packed, size),
            Self::Zlib => unpack(flate2::read::ZlibDecoder::new(&*packed), size),
            Self::Gzip => unpack(flate2::read::GzDecoder::new(&*packed), size),
            Self::Zstd => unpack(ruzstd::decoding::StreamingDecoder::new(&*packed).ok()?, size),
        }
    }
}

/// At most one byte more than `size`.
fn unpack(from: impl Read, size: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(size as u64 + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A chunk of `size` bytes that Blosc packed; `None` when it is damaged.
fn unpack_blosc(packed: &[u8], size: usize) -> Option<Vec<u8>> {
    let (mut unpacked, mut read, mut block) = (0, 0, 0);
    if packed.len() < 16 {
        return None;
    }
    // SAFETY: it reads 16 bytes at most, which are there.
    unsafe {
        blosc_src::blosc_cbuffer_sizes(
            packed.as_ptr().cast(),
            &mut unpacked,
            &mut read,
            &mut block,
        );
    }
    if unpacked != size || read != packed.len() {
        return None;
    }
    let mut out = vec![0u8; size];
    // SAFETY: the library trusts the sizes in the header, which were just compared with the slices; it reads
    // within `packed` and writes at most `size` bytes.
    let written = unsafe {
        let (from, to) = (packed.as_ptr().cast(), out.as_mut_ptr().cast());
        blosc_src::blosc_decompress_ctx(from, to, size, 1)
    };
    (usize::try_from(written) == Ok(size)).then_some(out)
}
