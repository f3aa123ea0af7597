//! The thread that sends, and the queue in front of it.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_post::PostError;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::{ATTEMPT, Event, Message, Webhook};

/// Most events that wait. What comes when the queue is full is dropped and counted.
const WAITING_MAX: usize = 1_000;

/// Most events of one message: what a receiver has to take in at once.
const MESSAGE_EVENTS_MAX: usize = 200;

/// Longest that a receiver can have us wait by its `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// How a courier spreads its attempts.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between the first attempt of a message and the second; doubled with each.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// Between one message and the next. Slack takes one a second.
    pub between: Duration,
    /// After that a message is given up: it tells of a moment that has long passed.
    pub give_up: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            between: Duration::from_secs(1),
            give_up: Duration::from_secs(900),
        }
    }
}

/// Sends events to one receiver, from a thread of its own. Dropping it drops what waits: see
/// [`WebhookSender::finish`].
#[derive(Debug)]
pub struct WebhookSender {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Event>,
    dropped: u64,
    is_sending: bool,
    /// Why nothing gets through, in a sentence.
    trouble: Option<String>,
    /// It is over when nothing waits any more, and at that moment in any case.
    end: Option<Instant>,
}

impl WebhookSender {
    /// Starts to send to `webhook`.
    ///
    /// # Errors
    ///
    /// The operating system has no thread for it.
    pub fn start(webhook: Webhook, pace: Pace) -> io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let round = Round { webhook, pace, shared: Arc::clone(&shared) };
        std::thread::Builder::new().name("webhook".to_owned()).spawn(|| round.run())?;
        Ok(Self { shared })
    }

    /// Has these sent, and does not wait for it.
    pub fn tell(&self, events: impl IntoIterator<Item = Event>) {
        let mut state = self.shared.state();
        for event in events {
            match state.waiting.len() < WAITING_MAX {
                true => state.waiting.push_back(event),
                false => state.dropped += 1,
            }
        }
        self.shared.changed.notify_all();
    }

    /// Why nothing gets through, in a sentence, if nothing does.
    pub fn trouble(&self) -> Option<String> {
        self.shared.state().trouble.clone()
    }

    /// Waits until all that was told is sent, but not longer than `patience`; then it is over.
    pub fn finish(&self, patience: Duration) {
        let end = Instant::now() + patience;
        let mut state = self.shared.state();
        state.end = Some(end);
        self.shared.changed.notify_all();
        while state.is_sending || !state.waiting.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(events = state.waiting.len(), "not sent, it is over");
                return;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for WebhookSender {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.end.get_or_insert_with(Instant::now);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole when its lock is given back.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `until`, or until it is over.
    fn pause(&self, until: Instant) {
        let mut state = self.state();
        loop {
            let until = state.end.map_or(until, |end| end.min(until));
            let left = until.saturating_duration_since(Instant::now());
            // A pause between messages is not worth the wait of somebody who wants to go.
            if left.is_zero() || state.end.is_some() && !state.is_sending {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for something to send; `None` when it is over.
    fn next(&self) -> Option<Message> {
        let mut state = self.state();
        loop {
            if !state.waiting.is_empty() && state.end.is_none_or(|end| Instant::now() < end) {
                state.is_sending = true;
                let count = state.waiting.len().min(MESSAGE_EVENTS_MAX);
                return Some(Message {
                    id: id(),
                    events: state.waiting.drain(..count).collect(),
                    dropped: std::mem::take(&mut state.dropped),
                });
            }
            if state.end.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) -> Option<Instant> {
        self.state().end
    }
}

/// What the thread has.
struct Round {
    webhook: Webhook,
    pace: Pace,
    shared: Arc<Shared>,
}

impl Round {
    fn run(self) {
        while let Some(message) = self.shared.next() {
            let lost = match self.deliver(&message) {
                Ok(()) => 0,
                Err(()) => u64::try_from(message.events.len()).unwrap_or(u64::MAX),
            };
            let mut state = self.shared.state();
            state.is_sending = false;
            if lost > 0 {
                state.dropped += lost + message.dropped;
            } else {
                state.trouble = None;
            }
            self.shared.changed.notify_all();
            drop(state);
            self.shared.pause(Instant::now() + self.pace.between);
        }
    }

    /// Tries until the message is taken; an error if it will not be.
    fn deliver(&self, message: &Message) -> Result<(), ()> {
        let form = &self.webhook.form;
        let body = message.body(form);
        let begun = Instant::now();
        let mut pause = self.pace.first;
        loop {
            let headers = message.headers(form, now_seconds(), &body);
            let mut deadline = Instant::now() + ATTEMPT;
            if let Some(end) = self.shared.end() {
                deadline = deadline.min(end);
            }
            let posted = self.webhook.endpoint.0.post_with(&headers, &body, deadline);
            let Err(error) = posted else { return Ok(()) };
            let is_last = error.is_refusal() || begun.elapsed() > self.pace.give_up;
            self.complain(&error, message, is_last);
            let asked = error.retry_after().unwrap_or_default().min(RETRY_AFTER_MAX);
            let until = Instant::now() + jittered(pause).max(asked);
            pause = (pause * 2).min(self.pace.longest);
            if is_last || self.shared.end().is_some_and(|end| until >= end) {
                return Err(());
            }
            self.shared.pause(until);
            if self.shared.end().is_some_and(|end| Instant::now() >= end) {
                return Err(());
            }
        }
    }

    /// Tells why it was not taken: once to the log, and on the screen until one is.
    fn complain(&self, error: &PostError, message: &Message, is_last: bool) {
        let origin = self.webhook.origin();
        let what = if is_last { "refused, and given up" } else { "not taken, tried again" };
        let text = format!("webhook {origin}: {what}: {error}");
        let mut state = self.shared.state();
        if state.trouble.as_ref() != Some(&text) {
            tracing::warn!(origin, events = message.events.len(), %error, "a webhook message is {what}");
        }
        state.trouble = Some(text);
    }
}

/// Between half of a pause and all of it, so that many who failed at once do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness the pause is whole.
    let share = SystemRandom::new().fill(&mut byte).map_or(1.0, |()| f64::from(byte[0]) / 255.0);
    pause.mul_f64(0.5 + share / 2.0)
}

/// 32 random hexadecimal digits.
fn id() -> String {
    let mut bytes = [0; 16];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        // Two messages never leave in the same nanosecond: there is a pause between them.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return since.as_nanos().to_string();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}
