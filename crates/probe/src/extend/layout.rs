//! Finds the offset of the relation's oid in `RelationData`.

use howdah_inspect::RunningServer;

use crate::error::ProbeError;

/// Offset in `RelationData` of the relation's own oid, which is followed by its database's.
///
/// Functions that lock a relation load both first, so the code of each reveals the offset:
///
/// ```text
/// f3 0f 7e 47 d        movq  d(%rdi), %xmm0        both at once
/// 8b 47 d              mov   d(%rdi), %eax         each separately
/// ```
///
/// Source: `rd_lockInfo.lockRelId` in `rel.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelationIdOffset {
    pub(super) offset: u8,
}

/// Number of bytes of each function's code to search, from its start.
const CODE_BYTES: usize = 48;

const FUNCTIONS: [&str; 3] = [
    "LockRelationForExtension",
    "ConditionalLockRelationForExtension",
    "UnlockRelationForExtension",
];

impl RelationIdOffset {
    /// Finds the offset; all functions must agree on it.
    pub(super) fn find(server: &RunningServer) -> Result<Self, ProbeError> {
        let mut found: Option<Self> = None;
        for symbol in FUNCTIONS {
            let code: [u8; CODE_BYTES] = server.memory().bytes(server.binary().address(symbol)?)?;
            match (Self::from_code(&code), found) {
                (Some(here), None) => found = Some(here),
                (Some(here), Some(before)) if here == before => {}
                _ => return Err(ProbeError::UnknownCode { symbol }),
            }
        }
        found.ok_or(ProbeError::UnknownCode { symbol: FUNCTIONS[0] })
    }

    fn from_code(code: &[u8]) -> Option<Self> {
        let loads = |pattern: &'static [u8]| {
            code.windows(pattern.len() + 1)
                .filter(move |window| window.starts_with(pattern))
                .map(move |window| window[pattern.len()])
        };
        if let Some(offset) = loads(&[0xf3, 0x0f, 0x7e, 0x47]).next() {
            return Some(Self { offset });
        }
        let mut offsets: Vec<_> = loads(&[0x8b, 0x47]).collect();
        offsets.sort_unstable();
        match offsets[..] {
            [relation, database] if database == relation + 4 => Some(Self { offset: relation }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_load_forms_yield_the_same_offset() {
        let at_once = [0x55, 0x31, 0xc9, 0xf3, 0x0f, 0x7e, 0x47, 0x4c, 0x64, 0x48];
        assert_eq!(RelationIdOffset::from_code(&at_once), Some(RelationIdOffset { offset: 0x4c }));
        let one_by_one = [0x8b, 0x47, 0x50, 0x89, 0x44, 0x24, 0x08, 0x8b, 0x47, 0x4c, 0x48];
        assert_eq!(
            RelationIdOffset::from_code(&one_by_one),
            Some(RelationIdOffset { offset: 0x4c })
        );
    }

    #[test]
    fn unknown_code_yields_no_relation_offset() {
        assert_eq!(RelationIdOffset::from_code(&[0x90; CODE_BYTES]), None);
        assert_eq!(RelationIdOffset::from_code(&[0x8b, 0x47, 0x50, 0x8b, 0x47, 0x40, 0]), None);
        assert_eq!(RelationIdOffset::from_code(&[0x8b, 0x47, 0x4c, 0, 0]), None);
    }
}
