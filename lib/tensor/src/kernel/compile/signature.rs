//! Reads the declarations of a kernel from compiled code: the attributes in section `.nv.info.KERNEL` of a cubin, which
//! is an ELF file (`cuobjdump -elf` prints them), or the `.param` list of an `.entry` in PTX.

/// `EIFMT_SVAL`: an attribute with a length prefix.
const SIZED: u8 = 4;
/// `EIATTR_KPARAM_INFO`: u32 index, u16 ordinal, u16 offset, u32 with the size in its upper 14 bits.
const PARAMETER: u8 = 0x17;
/// `EIATTR_MAX_THREADS`: u32 sizes of a block along the three axes.
const MOST_THREADS: u8 = 0x05;

/// Returns the size of each parameter of a kernel in bytes, in order; `None` if the machine code or PTX does not
/// declare them.
pub fn parameters(code: &[u8], kernel: &str) -> Option<Vec<usize>> {
    if !code.starts_with(b"\x7fELF") {
        return parameters_of_ptx(std::str::from_utf8(code).ok()?, kernel);
    }
    let found =
        attributes(code, kernel)?.into_iter().filter(|(attribute, _)| *attribute == PARAMETER);
    let found = found.map(|(_, value)| Some((number(value, 4, 2)?, number(value, 8, 4)? >> 18)));
    let mut found = found.collect::<Option<Vec<_>>>()?;
    found.sort_unstable();
    let in_order = found.iter().enumerate().all(|(i, (ordinal, _))| i == *ordinal);
    in_order.then(|| found.into_iter().map(|(_, size)| size).collect())
}

/// Returns the maximum number of threads per block of a kernel in machine code; `None` if it declares none.
pub fn most_threads(code: &[u8], kernel: &str) -> Option<usize> {
    let attributes = attributes(code, kernel)?;
    let sizes = attributes.iter().find(|(attribute, _)| *attribute == MOST_THREADS)?.1;
    Some(number(sizes, 0, 4)? * number(sizes, 4, 4)? * number(sizes, 8, 4)?)
}

/// Returns the attributes of a kernel that have a length prefix.
fn attributes<'a>(code: &'a [u8], kernel: &str) -> Option<Vec<(u8, &'a [u8])>> {
    let mut rest = section(code, &format!(".nv.info.{kernel}"))?;
    let mut found = Vec::new();
    while let [format, attribute, low, high, after @ ..] = rest {
        let bytes = usize::from(u16::from_le_bytes([*low, *high]));
        // Other formats store the value in place of the length.
        let (value, next) = after.split_at_checked(if *format == SIZED { bytes } else { 0 })?;
        if *format == SIZED {
            found.push((*attribute, value));
        }
        rest = next;
    }
    Some(found)
}

/// Parses the parameter sizes of a kernel in PTX (PTX ISA, "Kernel Function Parameters"): `.param .u64 NAME`, or
/// `.param .align 8 .b8 NAME[16]`.
fn parameters_of_ptx(ptx: &str, kernel: &str) -> Option<Vec<usize>> {
    let list = ptx.split_once(&format!(".entry {kernel}("))?.1.split_once(')')?.0;
    let size = |parameter: &str| {
        let words: Vec<&str> = parameter.split_whitespace().collect();
        let kind = words.iter().find_map(|word| {
            word.strip_prefix('.')?.strip_prefix(['u', 's', 'f', 'b'])?.parse::<usize>().ok()
        })?;
        let count = match words.last()?.split_once('[') {
            Some((_, count)) => count.strip_suffix(']')?.parse().ok()?,
            None => 1,
        };
        Some(kind / 8 * count)
    };
    list.split(',').filter(|parameter| !parameter.trim().is_empty()).map(size).collect()
}

/// Returns the content of a section of a 64-bit little-endian ELF file.
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

/// Reads the little-endian number of `width` bytes at offset `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + width)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}
