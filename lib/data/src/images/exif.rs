//! The orientation in EXIF metadata.

/// The tag `Orientation`.
const ORIENTATION: u16 = 0x0112;

/// Returns the orientation, 1 to 8, that EXIF metadata states, beginning with their TIFF header; 1, upright, if they
/// state none or are damaged: an image is not lost for its metadata.
pub(super) fn orientation(exif: &[u8]) -> u16 {
    stated(exif).filter(|value| (1..=8).contains(value)).unwrap_or(1)
}

fn stated(exif: &[u8]) -> Option<u16> {
    // Some programs write the prefix of the segment of JPEG files in PNG files, too.
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match exif.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = exif.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = long(4)? as usize;
    let entries = usize::from(short(directory)?);
    // An entry has 12 bytes: tag, type, count and value.
    let mut all = (0..entries).map(|entry| directory.saturating_add(2 + 12 * entry));
    let at = all.find(|at| short(*at) == Some(ORIENTATION))?;
    match short(at + 2)? {
        3 => short(at + 8),
        4 => u16::try_from(long(at + 8)?).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_metadata_mean_upright() {
        let little = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!([orientation(little), orientation(big)], [6, 8]);
        let prefixed = [b"Exif\0\0".as_slice(), little].concat();
        assert_eq!(orientation(&prefixed), 6);
        for cut in 0..20 {
            assert_eq!(orientation(&little[..cut.min(18)]), 1, "{cut}");
        }
        for (at, value) in [(18, 9), (18, 0), (12, 7), (4, 255), (7, 255)] {
            let mut changed = *little;
            changed[at] = value;
            assert_eq!(orientation(&changed), 1, "byte {at}");
        }
    }
}
