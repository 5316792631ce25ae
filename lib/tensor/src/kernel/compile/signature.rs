//! The parameters of a kernel as declared in its machine code: attribute `EIATTR_KPARAM_INFO` of section
//! `.nv.info.KERNEL` of a cubin, which is an ELF file. `cuobjdump -elf` prints the same.

/// `EIFMT_SVAL`: an attribute with a length prefix.
const SIZED: u8 = 4;
/// `EIATTR_KPARAM_INFO`: u32 index, u16 ordinal, u16 offset, u32 with the size in its upper 14 bits.
const PARAMETER: u8 = 0x17;

/// Size of each parameter of a kernel in bytes, in order; `None` if the cubin does not declare them.
pub fn parameters(cubin: &[u8], kernel: &str) -> Option<Vec<usize>> {
    let mut rest = section(cubin, &format!(".nv.info.{kernel}"))?;
    let mut found = Vec::new();
    while let [format, attribute, low, high, after @ ..] = rest {
        let bytes = usize::from(u16::from_le_bytes([*low, *high]));
        // The other formats have their value in place of the length.
        let (value, next) = after.split_at_checked(if *format == SIZED { bytes } else { 0 })?;
        if (*format, *attribute) == (SIZED, PARAMETER) {
            found.push((number(value, 4, 2)?, number(value, 8, 4)? >> 18));
        }
        rest = next;
    }
    found.sort_unstable();
    let in_order = found.iter().enumerate().all(|(i, (ordinal, _))| i == *ordinal);
    in_order.then(|| found.into_iter().map(|(_, size)| size).collect())
}

/// The content of a section of a 64-bit little-endian ELF file.
fn section<'a>(elf: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (table, entry, count) =
        (number(elf, 0x28, 8)?, number(elf, 0x3a, 2)?, number(elf, 0x3c, 2)?);
    let header = |i: usize| elf.get(table.checked_add(i * entry)?..);
    let content = |header: &[u8]| {
        let start = number(header, 0x18, 8)?;
        elf.get(start..start.checked_add(number(header, 0x20, 8)?)?)
    };
    let names = content(header(number(elf, 0x3e, 2)?)?)?;
    (0..count).filter_map(header).find_map(|header| {
        let rest = names.get(number(header, 0, 4)?..)?.strip_prefix(name.as_bytes())?;
        if rest.first() == Some(&0) { content(header) } else { None }
    })
}

/// The little-endian number of `width` bytes at offset `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + width)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}
