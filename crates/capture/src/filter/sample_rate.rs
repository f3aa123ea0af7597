//! [`SampleRate`]: selects a share of all sessions, always the same ones.

use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

/// A share of all sessions, selected by a hash of their names.
///
/// The hash is XXH3-64 (seed 0) of the session's name, as a fraction of 2⁶⁴. So a session belongs
/// to the same share on every machine, a larger parsed sample contains every smaller one, and `n`
/// workers that each take one [`part`](Self::part) together process every session once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRate {
    /// The first hash in the share, and the first one beyond it, which is up to 2⁶⁴.
    from: u128,
    to: u128,
}

impl SampleRate {
    /// Returns part `number`, from 1, of `count` parts with about equal numbers of sessions. `None`
    /// unless 1 ≤ number ≤ count.
    pub fn part(number: u32, count: u32) -> Option<Self> {
        let edge = |index: u32| (u128::from(index) << 64) / u128::from(count);
        (1..=count).contains(&number).then(|| Self { from: edge(number - 1), to: edge(number) })
    }

    /// Whether a session belongs to the share.
    pub fn contains(&self, session: &str) -> bool {
        let hash = u128::from(xxh3_64(session.as_bytes()));
        self.from <= hash && hash < self.to
    }
}

/// Parses `10%`, `0.1` or `1/10`: more than 0, at most 1.
impl FromStr for SampleRate {
    type Err = ParseSampleRateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let fraction = if let Some(percent) = text.strip_suffix('%') {
            number(percent).map(|percent| percent / 100.0)
        } else if let Some((over, under)) = text.split_once('/') {
            number(over).zip(number(under)).map(|(over, under)| over / under)
        } else {
            number(text)
        };
        match fraction {
            Some(fraction) if fraction > 0.0 && fraction <= 1.0 => {
                // Exact at 1, and as precise as a float elsewhere.
                Ok(Self { from: 0, to: (fraction * 2_f64.powi(64)) as u128 })
            }
            _ => Err(ParseSampleRateError { text: text.to_owned() }),
        }
    }
}

/// The error for a text that is not a sample rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a sample rate: write a share above 0 and up to 1, such as 10%, 0.1 or 1/10"
)]
pub struct ParseSampleRateError {
    text: String,
}

#[test]
fn parts_cover_sessions_once_and_samples_are_nested() {
    let small: SampleRate = "1%".parse().unwrap();
    let large: SampleRate = "1/10".parse().unwrap();
    let all: SampleRate = "1".parse().unwrap();
    let mut sizes = [0_u32; 7];
    let mut sampled = 0;
    for id in 0..20_000 {
        let session = format!("65e1a2b3.{id:x}");
        let holders = (1..=7).filter(|part| SampleRate::part(*part, 7).unwrap().contains(&session));
        let holders: Vec<_> = holders.collect();
        assert_eq!(holders.len(), 1);
        sizes[holders[0] as usize - 1] += 1;
        assert!(all.contains(&session));
        assert!(!small.contains(&session) || large.contains(&session));
        sampled += u32::from(large.contains(&session));
    }
    assert!(sizes.iter().all(|size| (2600..3100).contains(size)), "{sizes:?}");
    assert!((1800..2200).contains(&sampled), "{sampled}");
}

#[test]
fn invalid_sample_rates_are_rejected() {
    for text in ["0", "0%", "101%", "2", "-1", "", "x", "1/0", "0/0", "nan", "inf"] {
        assert!(text.parse::<SampleRate>().is_err(), "{text}");
    }
    assert_eq!(SampleRate::part(0, 4), None);
    assert_eq!(SampleRate::part(5, 4), None);
    assert_eq!(SampleRate::part(1, 0), None);
}
