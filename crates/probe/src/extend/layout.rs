//! Where a relation says which it is.

use howdah_inspect::Server;

use crate::error::Error;

/// How far into `RelationData` the relation's own oid lies, with its database's behind.
///
/// Functions that lock a relation load both first, and the code of each tells the place:
///
/// ```text
/// f3 0f 7e 47 d        movq  d(%rdi), %xmm0        both at once
/// 8b 47 d              mov   d(%rdi), %eax         one, and the other likewise
/// ```
///
/// `rd_lockInfo.lockRelId` of `rel.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelationId {
    pub(super) offset: u8,
}

/// Code that is looked through: all of each function is within.
const CODE_BYTES: usize = 48;

const FUNCTIONS: [&str; 3] = [
    "LockRelationForExtension",
    "ConditionalLockRelationForExtension",
    "UnlockRelationForExtension",
];

impl RelationId {
    /// Finds the place; all functions have to agree on it.
    pub(super) fn of(server: &Server) -> Result<Self, Error> {
        let mut found: Option<Self> = None;
        for symbol in FUNCTIONS {
            let code: [u8; CODE_BYTES] = server.memory().bytes(server.binary().address(symbol)?)?;
            match (Self::of_code(&code), found) {
                (Some(here), None) => found = Some(here),
                (Some(here), Some(before)) if here == before => {}
                _ => return Err(Error::UnknownCode { symbol }),
            }
        }
        found.ok_or(Error::UnknownCode { symbol: FUNCTIONS[0] })
    }

    fn of_code(code: &[u8]) -> Option<Self> {
        let loads = |pattern: &'static [u8]| {
            code.windows(pattern.len() + 1)
                .filter(move |window| window.starts_with(pattern))
                .map(move |window| window[pattern.len()])
        };
        if let Some(offset) = loads(&[0xf3, 0x0f, 0x7e, 0x47]).next() {
            return Some(Self { offset });
        }
        let mut places: Vec<_> = loads(&[0x8b, 0x47]).collect();
        places.sort_unstable();
        match places[..] {
            [relation, database] if database == relation + 4 => Some(Self { offset: relation }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_loading_tell_the_same() {
        let at_once = [0x55, 0x31, 0xc9, 0xf3, 0x0f, 0x7e, 0x47, 0x4c, 0x64, 0x48];
        assert_eq!(RelationId::of_code(&at_once), Some(RelationId { offset: 0x4c }));
        let one_by_one = [0x8b, 0x47, 0x50, 0x89, 0x44, 0x24, 0x08, 0x8b, 0x47, 0x4c, 0x48];
        assert_eq!(RelationId::of_code(&one_by_one), Some(RelationId { offset: 0x4c }));
    }

    #[test]
    fn other_code_is_not_guessed_at() {
        assert_eq!(RelationId::of_code(&[0x90; CODE_BYTES]), None);
        assert_eq!(RelationId::of_code(&[0x8b, 0x47, 0x50, 0x8b, 0x47, 0x40, 0]), None);
        assert_eq!(RelationId::of_code(&[0x8b, 0x47, 0x4c, 0, 0]), None);
    }
}
