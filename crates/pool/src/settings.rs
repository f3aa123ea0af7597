//! [`Setting`]: a name and a value, as startup packets, ParameterStatus and SET carry them.

use std::fmt;

/// A setting with its value, in bytes as the wire has them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Setting {
    /// Its name. PostgreSQL compares names without regard to ASCII case.
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Box<[u8]>,
}

impl Setting {
    /// A name and a value; neither may hold a zero byte if it is to be sent.
    pub fn new(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self { name: name.as_ref().into(), value: value.as_ref().into() }
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value } = self;
        write!(f, "{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
    }
}
