//! [`SessionParameter`]: a parameter's name and value.

/// A session parameter: name and value as bytes, as in the protocol.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SessionParameter {
    /// The name; PostgreSQL compares names ignoring ASCII case.
    pub name: Box<[u8]>,
    /// The value, in the client's encoding.
    pub value: Box<[u8]>,
}

/// Whether two names are equal, ignoring ASCII case.
pub(crate) fn eq_name(a: &[u8], b: &[u8]) -> bool {
    a.eq_ignore_ascii_case(b)
}
