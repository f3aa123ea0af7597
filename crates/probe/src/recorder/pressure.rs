//! Reads the pressure on the host's resources, which Linux reports in `/proc/pressure` (since 4.20,
//! unless it was built or started without PSI).

use std::fs;

use super::session_records::HostPressure;

impl HostPressure {
    /// Reads the present pressure. All values are `None` if the kernel does not report any.
    pub fn read() -> Self {
        let read =
            |resource: &str| avg10(&fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?);
        Self { at_us: 0, cpu: read("cpu"), io: read("io"), memory: read("memory") }
    }

    /// Returns the highest pressure, in percent; `None` if none is reported.
    pub fn highest(&self) -> Option<f64> {
        [self.cpu, self.io, self.memory]
            .into_iter()
            .flatten()
            .max()
            .map(|most| f64::from(most) / 100.0)
    }
}

/// Parses the line `some avg10=1.23 avg60=0.99 avg300=0.41 total=1234`.
fn avg10(text: &str) -> Option<u32> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = some.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    let percent: f64 = value.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some((percent * 100.0).round() as u32)
}

#[test]
fn pressure_is_parsed() {
    let text = "some avg10=12.34 avg60=0.99 avg300=0.41 total=1234\nfull avg10=99.00 avg60=0 avg300=0 total=0\n";
    assert_eq!(avg10(text), Some(1234));
    assert_eq!(avg10("some avg10=high"), None);
    assert_eq!(avg10(""), None);
    let pressure = HostPressure { io: Some(5000), cpu: Some(100), ..HostPressure::default() };
    assert_eq!((pressure.highest(), HostPressure::default().highest()), (Some(50.0), None));
}
