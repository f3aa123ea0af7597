//! Derives new inputs from old ones, and shrinks failing ones.

use crate::random::Random;

/// The sources that a mutation draws from.
#[derive(Clone, Copy, Debug)]
pub struct Material<'a> {
    /// Keywords and fragments of the format, the target's dictionary.
    pub words: &'a [&'a [u8]],
    /// Other inputs, for splicing.
    pub others: &'a [Vec<u8>],
    /// Maximum length of a mutated input, in bytes.
    pub bytes_max: usize,
}

/// Applies one to eight mutations to `input`.
pub fn mutate(input: &mut Vec<u8>, material: Material<'_>, random: &mut Random) {
    let most = 1 << random.below(4);
    for _ in 0..=random.below(most) {
        change(input, material, random);
    }
    input.truncate(material.bytes_max);
}

fn change(input: &mut Vec<u8>, material: Material<'_>, random: &mut Random) {
    let at = random.below(input.len() + 1);
    // Half of the mutations affect a few bytes, the others any number.
    let reach = if random.below(2) == 0 { 4 } else { input.len() };
    let end = (at + 1 + random.below(reach)).min(input.len());
    match random.below(12) {
        0 | 1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = *random.pick(BYTES).unwrap_or(&0);
            }
        }
        3 => input.insert(at, random.byte()),
        4 => drop(input.drain(at..end)),
        5 => input.truncate(at),
        6 => {
            let part = input[at..end].to_vec();
            let most = 1 << random.below(6);
            let times = (1 + random.below(most)).min(material.bytes_max / part.len().max(1));
            input.splice(at..at, part.repeat(times));
        }
        7 => {
            let part = input[at..end].to_vec();
            let to = random.below(input.len() + 1);
            input.splice(to..to, part);
        }
        8 => splice(input, at, material, random),
        9 => {
            let number = *random.pick(NUMBERS).unwrap_or(&0);
            let bytes = number.to_be_bytes();
            let width = 1 << random.below(4);
            let end = (at + width).min(input.len());
            input.splice(at..end, bytes[bytes.len() - width..].iter().copied());
        }
        _ => {
            let word = random.pick(material.words).copied().unwrap_or(b"\n");
            let end = if random.below(2) == 0 { at } else { (at + word.len()).min(input.len()) };
            input.splice(at..end, word.iter().copied());
        }
    }
}

/// Replaces the rest of the input by a part of another one, or inserts the part.
fn splice(input: &mut Vec<u8>, at: usize, material: Material<'_>, random: &mut Random) {
    let Some(other) = random.pick(material.others) else { return };
    let from = random.below(other.len() + 1);
    let end = from + random.below(other.len() - from + 1);
    if random.below(2) == 0 {
        input.truncate(at);
        input.extend_from_slice(&other[from..]);
    } else {
        input.splice(at..at, other[from..end].iter().copied());
    }
}

/// Bytes with a meaning in many formats.
const BYTES: &[u8] = b"\0\x01\x7f\x80\xff\n\r\t '\"\\,;:%$()[]{}=-/*.09azAZ_#@";

/// Boundary values. Their low bytes are boundary values of narrower integers.
const NUMBERS: &[u64] = &[
    0,
    1,
    4,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Shrinks an input by removing parts while `fails` still holds, in a bounded number of attempts.
pub fn shrink(input: &[u8], mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut best = input.to_vec();
    let mut tries = SHRINK_TRIES;
    let mut part = best.len() / 2;
    while part > 0 && tries > 0 {
        let mut at = 0;
        while at < best.len() && tries > 0 {
            let mut shorter = best.clone();
            shorter.drain(at..(at + part).min(best.len()));
            tries -= 1;
            if fails(&shorter) {
                best = shorter;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    best
}

/// Most candidates tried while shrinking.
const SHRINK_TRIES: u32 = 4000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let others = [b"select 1".to_vec(), b"".to_vec()];
        let material = Material { words: &[b"word"], others: &others, bytes_max: 64 };
        let inputs = |seed| {
            let mut random = Random::new(seed);
            let mut input = b"begin".to_vec();
            let mut inputs = Vec::new();
            for _ in 0..500 {
                mutate(&mut input, material, &mut random);
                assert!(input.len() <= 64);
                inputs.push(input.clone());
            }
            inputs
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(1).iter().any(|input| input.windows(4).any(|part| part == b"word")));
    }

    #[test]
    fn shrinking_keeps_what_matters() {
        let fails = |input: &[u8]| input.contains(&b'x') && input.contains(&b'y');
        assert_eq!(shrink(b"aaaaaaaaxbbbbbbbbbycccccccc", fails), b"xy");
    }
}
