//! USDT probes that a server was built with (`--enable-dtrace`): instructions that do nothing until
//! a tracer attaches to them.
//!
//! Each probe site is a note in the section `.note.stapsdt`. It holds the address of the
//! instruction, the address of the semaphore that counts the attached tracers, and the locations of
//! the arguments at that instruction, in assembler syntax. A probe may have several sites, each
//! with the arguments in different locations.
//!
//! Source: SystemTap's wiki, "UserSpaceProbeImplementation"; `probes.d` for PostgreSQL's probes.

use object::{
    Endian as _, Endianness, Object as _, ObjectSection as _,
    read::{ReadRef, elf::ElfFile64},
};

/// One site of a USDT probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// The probe's name, e.g. `checkpoint__start`.
    pub name: String,
    /// Address of the instruction, as in the file.
    pub address: u64,
    /// Address, as in the file, of the semaphore: a counter that must be non-zero for the code to
    /// reach the site. Some sites have none.
    pub semaphore: Option<u64>,
    /// Arguments of the probe, from the first to the last.
    pub arguments: Vec<UsdtArgument>,
}

/// Size and location of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtArgument {
    /// Size in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether the highest bit is the sign.
    pub is_signed: bool,
    /// Location of the argument at the probe site.
    pub operand: Operand,
}

/// Location of an argument's value, or the value itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A constant, given in the note.
    Constant(i64),
    /// A register, given by its 64-bit name: `rax`.
    Register(&'static str),
    /// Memory, `offset` bytes from the address in a register.
    Based {
        /// 64-bit name of the register.
        base: &'static str,
        /// Offset from the address in the register, in bytes.
        offset: i64,
    },
    /// Memory, `offset` bytes after a variable.
    Variable {
        /// Name of the variable.
        symbol: String,
        /// Offset from the variable's address, in bytes.
        offset: i64,
    },
    /// An operand of another form, as written in the note.
    Other(String),
}

/// Returns all sites of the probes of `provider`.
pub(crate) fn parse_usdt_probes<'data>(
    elf: &ElfFile64<'data, Endianness, impl ReadRef<'data>>,
    provider: &str,
) -> Vec<UsdtProbe> {
    let Some(section) = elf.section_by_name(".note.stapsdt") else { return Vec::new() };
    let Ok(notes) = section.data() else { return Vec::new() };
    // If the file was relinked (e.g. by prelink), all addresses moved by as much as this section.
    let base = elf.section_by_name(".stapsdt.base").map(|section| section.address());
    let mut markers = Vec::new();
    let mut rest = notes;
    while let Some((kind, name, description, after)) = split_note(rest, elf.endian()) {
        rest = after;
        if kind == STAPSDT && name == b"stapsdt\0" {
            markers.extend(parse_usdt_note(description, base, provider, elf.endian()));
        }
    }
    markers
}

/// Type of a note that describes a probe site: `NT_STAPSDT`.
const STAPSDT: u32 = 3;

type ElfNote<'a> = (u32, &'a [u8], &'a [u8], &'a [u8]);

/// Splits off the first note: kind, name, description, and the remaining bytes.
fn split_note(bytes: &[u8], endian: Endianness) -> Option<ElfNote<'_>> {
    let word = |at: usize| {
        let word = bytes.get(at..)?.first_chunk::<4>()?;
        Some(endian.read_u32_bytes(*word))
    };
    let (name_bytes, description_bytes) = (word(0)? as usize, word(4)? as usize);
    let kind = word(8)?;
    let (name, after) = bytes.get(12..)?.split_at_checked(name_bytes)?;
    let after = after.get(name_bytes.next_multiple_of(4) - name_bytes..)?;
    let (description, after) = after.split_at_checked(description_bytes)?;
    let padding = description_bytes.next_multiple_of(4) - description_bytes;
    Some((kind, name, description, after.get(padding..).unwrap_or_default()))
}

/// Returns the probe site that a note describes, if it belongs to `provider`.
fn parse_usdt_note(
    description: &[u8],
    base: Option<u64>,
    provider: &str,
    endian: Endianness,
) -> Option<UsdtProbe> {
    let number = |index: usize| {
        let number = description.get(8 * index..)?.first_chunk::<8>()?;
        Some(endian.read_u64_bytes(*number))
    };
    let moved = base.map_or(0, |base| base.wrapping_sub(number(1).unwrap_or(base)));
    let mut texts = description.get(24..)?.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    if texts.next()? != provider {
        return None;
    }
    let name = texts.next()?.into_owned();
    let arguments = texts.next().unwrap_or_default();
    let semaphore = number(2)?;
    Some(UsdtProbe {
        name,
        address: number(0)?.wrapping_add(moved),
        semaphore: (semaphore != 0).then(|| semaphore.wrapping_add(moved)),
        arguments: arguments.split_ascii_whitespace().map(UsdtArgument::parse).collect(),
    })
}

impl UsdtArgument {
    /// Parses `-4@40(%rbp)`: size in bytes, negative if signed, and location. A missing or invalid
    /// size counts as 8.
    fn parse(text: &str) -> Self {
        let (size, place) = text.split_once('@').unwrap_or(("8", text));
        let size = size.parse().unwrap_or(8_i8);
        let bytes = match size.unsigned_abs() {
            bytes @ (1 | 2 | 4 | 8) => bytes,
            _ => 8,
        };
        let operand = Operand::parse(place).unwrap_or_else(|| Operand::Other(place.to_owned()));
        Self { bytes, is_signed: size < 0, operand }
    }
}

impl Operand {
    fn parse(place: &str) -> Option<Self> {
        if let Some(constant) = place.strip_prefix('$') {
            return Some(Self::Constant(constant.parse().ok()?));
        }
        if let Some(name) = place.strip_prefix('%') {
            return Some(Self::Register(register(name)?));
        }
        let (before, base) = place.strip_suffix(')')?.split_once("(%")?;
        if base == "rip" {
            // `40+CheckpointStats`, `CheckpointStats+40`, `NBuffers`
            let mut symbol = None;
            let mut offset = 0_i64;
            for part in before.split('+') {
                match part.parse::<i64>() {
                    Ok(number) => offset = offset.checked_add(number)?,
                    Err(_) if part.is_empty() => return None,
                    Err(_) => symbol = Some(part),
                }
            }
            return Some(Self::Variable { symbol: symbol?.to_owned(), offset });
        }
        let offset = if before.is_empty() { 0 } else { before.parse().ok()? };
        Some(Self::Based { base: register(base)?, offset })
    }
}

/// Returns the 64-bit register that is `name` or has it as its lowest part; `None` for other parts
/// such as `ah`.
fn register(name: &str) -> Option<&'static str> {
    const NAMES: [(&str, [&str; 3]); 16] = [
        ("rax", ["eax", "ax", "al"]),
        ("rbx", ["ebx", "bx", "bl"]),
        ("rcx", ["ecx", "cx", "cl"]),
        ("rdx", ["edx", "dx", "dl"]),
        ("rsi", ["esi", "si", "sil"]),
        ("rdi", ["edi", "di", "dil"]),
        ("rbp", ["ebp", "bp", "bpl"]),
        ("rsp", ["esp", "sp", "spl"]),
        ("r8", ["r8d", "r8w", "r8b"]),
        ("r9", ["r9d", "r9w", "r9b"]),
        ("r10", ["r10d", "r10w", "r10b"]),
        ("r11", ["r11d", "r11w", "r11b"]),
        ("r12", ["r12d", "r12w", "r12b"]),
        ("r13", ["r13d", "r13w", "r13b"]),
        ("r14", ["r14d", "r14w", "r14b"]),
        ("r15", ["r15d", "r15w", "r15b"]),
    ];
    let row = NAMES.iter().find(|(whole, parts)| *whole == name || parts.contains(&name));
    row.map(|(whole, _)| *whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(text: &str) -> Operand {
        UsdtArgument::parse(text).operand
    }

    #[test]
    fn argument_operands_are_parsed() {
        let argument = UsdtArgument::parse("-4@%r12d");
        assert_eq!((argument.bytes, argument.is_signed), (4, true));
        assert_eq!(argument.operand, Operand::Register("r12"));
        assert_eq!(operand("8@%rax"), Operand::Register("rax"));
        assert_eq!(operand("-4@$-1"), Operand::Constant(-1));
        assert_eq!(operand("1@-149(%rbp)"), Operand::Based { base: "rbp", offset: -149 });
        assert_eq!(operand("4@(%r12)"), Operand::Based { base: "r12", offset: 0 });
        let variable = |symbol: &str, offset| Operand::Variable { symbol: symbol.into(), offset };
        assert_eq!(operand("-4@NBuffers(%rip)"), variable("NBuffers", 0));
        assert_eq!(operand("-4@40+CheckpointStats(%rip)"), variable("CheckpointStats", 40));
        for odd in ["8@%xmm0", "1@%ah", "4@8(%rax,%rbx,4)", "4@", "@", "", "4@(%rip)"] {
            assert!(matches!(operand(odd), Operand::Other(_)), "{odd}: {:?}", operand(odd));
        }
    }

    #[test]
    fn truncated_note_is_rejected() {
        let mut description = Vec::new();
        for number in [0x1000_u64, 0x500, 0x2000] {
            description.extend(number.to_le_bytes());
        }
        description.extend(b"postgresql\0checkpoint__start\0-4@%ebx\0");
        let mut note_bytes = Vec::new();
        for word in [8, description.len() as u32, STAPSDT] {
            note_bytes.extend(word.to_le_bytes());
        }
        note_bytes.extend(b"stapsdt\0");
        note_bytes.extend(&description);
        let (kind, name, found, _) =
            split_note(&note_bytes, Endianness::Little).expect("note is complete");
        assert_eq!((kind, name, found), (STAPSDT, &b"stapsdt\0"[..], &description[..]));
        for end in 0..note_bytes.len() {
            assert!(split_note(&note_bytes[..end], Endianness::Little).is_none());
        }
        let place = parse_usdt_note(found, Some(0x540), "postgresql", Endianness::Little)
            .expect("probe belongs to postgresql");
        assert_eq!((place.address, place.semaphore), (0x1040, Some(0x2040)));
        assert_eq!(place.name, "checkpoint__start");
        assert_eq!(parse_usdt_note(found, None, "node", Endianness::Little), None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_elf_notes_do_not_panic(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..96),
            lengths in proptest::array::uniform2(0_u32..64),
        ) {
            let [name, description] = lengths.map(u32::to_le_bytes);
            let notes = [&name[..], &description, &STAPSDT.to_le_bytes(), &bytes].concat();
            let mut rest = &notes[..];
            while let Some((_, _, description, after)) = split_note(rest, Endianness::Little) {
                assert!(after.len() < rest.len());
                if let Some(probe) = parse_usdt_note(description, Some(64), "", Endianness::Little) {
                    assert!(probe.arguments.iter().all(|argument| argument.bytes <= 8));
                }
                rest = after;
            }
        }

        #[test]
        fn arbitrary_arguments_do_not_panic(text in r"(-?[0-9]{0,20})@?[$%(]{0,2}[a-z0-9+]{0,12}[()%a-z0-9]{0,9}") {
            let argument = UsdtArgument::parse(&text);
            assert!([1, 2, 4, 8].contains(&argument.bytes), "{argument:?}");
        }
    }
}
