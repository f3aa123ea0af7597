//! Progress bars on stderr.

use std::{borrow::Cow, fmt::Write, io, time::Duration};

use indicatif::{
    HumanCount, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
};
use tracing_subscriber::fmt::MakeWriter;

const WITH_TOTAL: &str = "{msg} {wide_bar} {human_pos}/{human_len} {each_second} eta {eta}";
const BYTES: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
const WITHOUT_TOTAL: &str = "{spinner} {msg} {human_pos} {each_second} {elapsed}";

/// The unit and total of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Total {
    /// Items: statements, files.
    Count(u64),
    /// Total size in bytes.
    Bytes(u64),
    /// Items whose total is unknown, for example because they come from a pipe.
    Unknown,
}

/// The progress bars of one command. Messages and log lines are printed above them.
#[derive(Clone, Debug)]
pub(crate) struct Bars(MultiProgress);

impl Bars {
    /// Creates bars on stderr if they are `visible`, otherwise bars that draw nothing.
    pub(crate) fn new(visible: bool) -> Self {
        Self(MultiProgress::with_draw_target(if visible {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        }))
    }

    /// Adds a bar with this label, and starts to draw it.
    pub(crate) fn add(&self, total: Total, label: impl Into<Cow<'static, str>>) -> ProgressBar {
        let (bar, template) = match total {
            Total::Count(count) => (ProgressBar::new(count), WITH_TOTAL),
            Total::Bytes(bytes) => (ProgressBar::new(bytes), BYTES),
            Total::Unknown => (ProgressBar::no_length(), WITHOUT_TOTAL),
        };
        let style = ProgressStyle::with_template(template).expect("the templates above are valid");
        let style = style.with_key("each_second", |state: &ProgressState, out: &mut dyn Write| {
            #[expect(clippy::cast_possible_truncation, reason = "saturates")]
            #[expect(clippy::cast_sign_loss, reason = "is not negative")]
            let whole = state.per_sec().round() as u64;
            // Writing to a string cannot fail.
            let _ = write!(out, "{}/s", HumanCount(whole));
        });
        let bar = self.0.add(bar.with_style(style).with_message(label));
        if self.0.is_hidden() {
            return bar;
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    /// Writes to stderr above the bars, without damaging their display.
    pub(crate) fn write_above(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.suspend(|| io::Write::write_all(&mut io::stderr(), bytes))
    }
}

/// A writer of log lines to stderr, above the bars.
#[derive(Debug)]
pub(crate) struct AboveBars<'a>(&'a Bars);

impl io::Write for AboveBars<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_above(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Bars {
    type Writer = AboveBars<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        AboveBars(self)
    }
}

#[test]
fn hidden_bars_still_count() {
    let bars = Bars::new(false);
    for total in [Total::Count(10), Total::Bytes(10), Total::Unknown] {
        let bar = bars.add(total, "reading");
        bar.inc(3);
        assert_eq!(bar.position(), 3);
        assert!(bar.is_hidden());
    }
}
