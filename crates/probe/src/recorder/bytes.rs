//! Values as bytes and back: LEB128 numbers, UTF-8 behind its length, lists behind their number.
//!
//! A type says once, by [`packed!`], which fields it has in which order; writing and reading follow from
//! that and cannot differ.

/// A record that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It ends too early.
    #[error("it ends too early")]
    Ended,
    /// A number does not fit where it belongs.
    #[error("a number is too large")]
    Number,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// It is of a kind that this version does not know: a later one wrote it.
    #[error("it is of a kind that this version does not know")]
    Kind,
}

/// What can be in a record.
pub(super) trait Packed: Sized {
    /// Appends it.
    fn pack(&self, out: &mut Vec<u8>);

    /// Takes it from the front of `input`.
    fn unpack(input: &mut &[u8]) -> Result<Self, Damage>;
}

/// Structures are their fields, one after another.
macro_rules! packed {
    ($($name:ident { $($field:ident),* $(,)? })*) => { $(
        impl $crate::recorder::bytes::Packed for $name {
            fn pack(&self, out: &mut Vec<u8>) {
                $( self.$field.pack(out); )*
            }

            fn unpack(input: &mut &[u8]) -> Result<Self, $crate::recorder::bytes::Damage> {
                Ok(Self { $( $field: $crate::recorder::bytes::Packed::unpack(input)?, )* })
            }
        }
    )* };
}

/// Words out of a fixed list, `ALL`, are their places in it.
macro_rules! packed_words {
    ($($name:ty)*) => { $(
        impl $crate::recorder::bytes::Packed for $name {
            fn pack(&self, out: &mut Vec<u8>) {
                let place = Self::ALL.iter().position(|word| word == self);
                (place.expect("all words are in the list") as u64).pack(out);
            }

            fn unpack(input: &mut &[u8]) -> Result<Self, $crate::recorder::bytes::Damage> {
                let place = usize::try_from(u64::unpack(input)?).unwrap_or(usize::MAX);
                Self::ALL.get(place).copied().ok_or($crate::recorder::bytes::Damage::Kind)
            }
        }
    )* };
}

pub(super) use {packed, packed_words};

impl Packed for u64 {
    fn pack(&self, out: &mut Vec<u8>) {
        let mut value = *self;
        while value >= 0x80 {
            out.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = input.split_first().ok_or(Damage::Ended)?;
            *input = rest;
            let bits = Self::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Damage::Number);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damage::Number)
    }
}

impl Packed for u32 {
    fn pack(&self, out: &mut Vec<u8>) {
        u64::from(*self).pack(out);
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        u64::unpack(input)?.try_into().map_err(|_| Damage::Number)
    }
}

/// In zigzag: small numbers of either sign are short.
impl Packed for i64 {
    fn pack(&self, out: &mut Vec<u8>) {
        (self << 1 ^ self >> 63).cast_unsigned().pack(out);
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        let value = u64::unpack(input)?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }
}

impl Packed for bool {
    fn pack(&self, out: &mut Vec<u8>) {
        u64::from(*self).pack(out);
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        Ok(u64::unpack(input)? != 0)
    }
}

/// On one line and safe to show: what could steer a terminal is replaced when it is read.
impl Packed for String {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        let bytes = usize::try_from(u64::unpack(input)?).map_err(|_| Damage::Ended)?;
        let (text, rest) = input.split_at_checked(bytes).ok_or(Damage::Ended)?;
        *input = rest;
        let text = str::from_utf8(text).map_err(|_| Damage::Text)?;
        Ok(text
            .chars()
            .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
            .collect())
    }
}

impl<T: Packed> Packed for Option<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        self.is_some().pack(out);
        if let Some(value) = self {
            value.pack(out);
        }
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        bool::unpack(input)?.then(|| T::unpack(input)).transpose()
    }
}

impl<T: Packed> Packed for Vec<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        self.iter().for_each(|item| item.pack(out));
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        let count = usize::try_from(u64::unpack(input)?).unwrap_or(usize::MAX);
        // Every item has a byte at least, so what is there bounds what is asked for.
        if count > input.len() {
            return Err(Damage::Ended);
        }
        (0..count).map(|_| T::unpack(input)).collect()
    }
}

impl<A: Packed, B: Packed> Packed for (A, B) {
    fn pack(&self, out: &mut Vec<u8>) {
        self.0.pack(out);
        self.1.pack(out);
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        Ok((A::unpack(input)?, B::unpack(input)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn again<T: Packed>(value: &T) -> T {
        let mut out = Vec::new();
        value.pack(&mut out);
        let mut input = &out[..];
        let read = T::unpack(&mut input).unwrap();
        assert!(input.is_empty());
        read
    }

    proptest! {
        #[test]
        fn values_come_back(number: u64, signed: i64, words in prop::collection::vec("[ -~]*", 0..4), some: Option<u32>) {
            prop_assert_eq!(again(&number), number);
            prop_assert_eq!(again(&signed), signed);
            prop_assert_eq!(again(&words), words);
            prop_assert_eq!(again(&(some, number)), (some, number));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Vec::<(String, Option<u64>)>::unpack(&mut &bytes[..]);
        }
    }

    #[test]
    fn what_could_steer_a_terminal_is_not_read() {
        assert_eq!(again(&"a\x1b[2Jb".to_owned()), "a\u{fffd}[2Jb");
        assert_eq!(u32::unpack(&mut &[0xff; 9][..]), Err(Damage::Ended));
        assert_eq!(u64::unpack(&mut &[0xff; 10][..]), Err(Damage::Number));
    }
}
