//! The sender thread and its queue.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_http::client::PostError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use ring::rand::{SecureRandom as _, SystemRandom};

use super::{ATTEMPT_TIMEOUT, Webhook, WebhookEvent, WebhookMessage};

/// Maximum number of queued events. Further events are dropped and counted.
const QUEUED_EVENTS_MAX: usize = 1_000;

/// Maximum number of events per message, to limit its size.
const MESSAGE_EVENTS_MAX: usize = 200;

/// Upper limit for a receiver's `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Delays and time limits of the delivery of messages to a webhook.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Delay between the first and the second attempt; doubled after each further attempt. The
    /// actual delays are random, between half and all of this.
    pub initial_delay: Duration,
    /// Maximum delay between two attempts, unless the receiver's `Retry-After` is longer.
    pub max_delay: Duration,
    /// Time from the end of one delivery to the next message, except during shutdown. Slack accepts
    /// one message per second.
    pub message_interval: Duration,
    /// Time since the first attempt after which a message is discarded if an attempt fails.
    pub give_up_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(60),
            message_interval: Duration::from_secs(1),
            give_up_after: Duration::from_secs(900),
        }
    }
}

/// Sends events to one receiver, from its own thread. Dropping it discards the queue;
/// [`WebhookSender::finish`] sends the queue first.
#[derive(Debug)]
pub struct WebhookSender {
    shared: Arc<SenderShared>,
}

#[derive(Debug)]
struct SenderShared {
    state: Mutex<SenderQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SenderQueue {
    queued: VecDeque<WebhookEvent>,
    dropped: u64,
    is_sending: bool,
    /// Description of the last failed attempt, in one sentence; `None` once a message is accepted.
    problem: Option<String>,
    /// Set on shutdown: the thread ends once the queue is empty, and starts no attempt after this
    /// time.
    deadline: Option<Instant>,
}

impl WebhookSender {
    /// Starts sending to `webhook`.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub fn start(webhook: Webhook, policy: RetryPolicy) -> io::Result<Self> {
        let shared = Arc::new(SenderShared { state: Mutex::default(), changed: Condvar::new() });
        let worker = WebhookWorker { webhook, policy, shared: Arc::clone(&shared) };
        std::thread::Builder::new().name("webhook".to_owned()).spawn(|| worker.run())?;
        Ok(Self { shared })
    }

    /// Queues events without waiting for their delivery.
    pub fn notify(&self, events: impl IntoIterator<Item = WebhookEvent>) {
        let mut state = self.shared.state();
        for event in events {
            if state.queued.len() < QUEUED_EVENTS_MAX {
                state.queued.push_back(event);
            } else {
                state.dropped += 1;
            }
        }
        self.shared.changed.notify_all();
    }

    /// Returns a description of the last failed attempt; `None` if there was none, or if a message
    /// was accepted since.
    pub fn problem(&self) -> Option<String> {
        self.shared.state().problem.clone()
    }

    /// Waits until all queued events are sent or given up, at most for `timeout`. The thread then
    /// stops.
    pub fn finish(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        let mut state = self.shared.state();
        state.deadline = Some(end);
        self.shared.changed.notify_all();
        while state.is_sending || !state.queued.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(events = state.queued.len(), "events not sent before shutdown");
                return;
            }
            self.shared.changed.wait_for(&mut state, left);
        }
    }
}

impl Drop for WebhookSender {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.deadline.get_or_insert_with(Instant::now);
        self.shared.changed.notify_all();
    }
}

impl SenderShared {
    fn state(&self) -> MutexGuard<'_, SenderQueue> {
        // Every change is complete when the lock is released.
        self.state.lock()
    }

    /// Waits until `until`, but not beyond the shutdown deadline. Between messages, it returns as
    /// soon as a shutdown begins.
    fn pause(&self, until: Instant) {
        let mut state = self.state();
        loop {
            let until = state.deadline.map_or(until, |end| end.min(until));
            let left = until.saturating_duration_since(Instant::now());
            // Shutdown does not wait for the interval between messages.
            if left.is_zero() || state.deadline.is_some() && !state.is_sending {
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Waits for events to send. On shutdown, returns `None` once the queue is empty or the
    /// deadline has passed.
    fn next(&self) -> Option<WebhookMessage> {
        let mut state = self.state();
        loop {
            if !state.queued.is_empty() && state.deadline.is_none_or(|end| Instant::now() < end) {
                state.is_sending = true;
                let count = state.queued.len().min(MESSAGE_EVENTS_MAX);
                return Some(WebhookMessage {
                    id: id(),
                    events: state.queued.drain(..count).collect(),
                    dropped: std::mem::take(&mut state.dropped),
                });
            }
            if state.deadline.is_some() {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.state().deadline
    }
}

/// The data of the thread that sends queued events.
struct WebhookWorker {
    webhook: Webhook,
    policy: RetryPolicy,
    shared: Arc<SenderShared>,
}

impl WebhookWorker {
    fn run(self) {
        while let Some(message) = self.shared.next() {
            let undelivered = match self.deliver(&message) {
                Ok(()) => 0,
                Err(()) => u64::try_from(message.events.len()).unwrap_or(u64::MAX),
            };
            let mut state = self.shared.state();
            state.is_sending = false;
            if undelivered > 0 {
                state.dropped += undelivered + message.dropped;
            } else {
                state.problem = None;
            }
            self.shared.changed.notify_all();
            drop(state);
            self.shared.pause(Instant::now() + self.policy.message_interval);
        }
    }

    /// Sends a message, and retries until the receiver accepts it. Fails if the receiver refuses
    /// the message, the message is outdated, or the time to shut down is over.
    fn deliver(&self, message: &WebhookMessage) -> Result<(), ()> {
        let format = &self.webhook.format;
        let body = message.body(format);
        let started = Instant::now();
        let mut pause = self.policy.initial_delay;
        loop {
            let headers = message.headers(format, now_seconds(), &body);
            let mut deadline = Instant::now() + ATTEMPT_TIMEOUT;
            if let Some(end) = self.shared.deadline() {
                deadline = deadline.min(end);
            }
            let posted = self.webhook.endpoint.0.post_with(&headers, &body, deadline);
            let Err(error) = posted else { return Ok(()) };
            let is_last = error.is_refusal() || started.elapsed() > self.policy.give_up_after;
            self.report_failure(&error, message, is_last);
            let retry_after = error.retry_after().unwrap_or_default().min(RETRY_AFTER_MAX);
            let until = Instant::now() + jittered(pause).max(retry_after);
            pause = (pause * 2).min(self.policy.max_delay);
            if is_last || self.shared.deadline().is_some_and(|end| until >= end) {
                return Err(());
            }
            self.shared.pause(until);
            if self.shared.deadline().is_some_and(|end| Instant::now() >= end) {
                return Err(());
            }
        }
    }

    /// Reports a failed attempt: in the log unless it fails as the previous one did, and on the
    /// screen until a message is accepted.
    fn report_failure(&self, error: &PostError, message: &WebhookMessage, is_last: bool) {
        let origin = self.webhook.origin();
        let what = if is_last { "delivery failed, given up" } else { "delivery failed, retrying" };
        let text = format!("webhook {origin}: {what}: {error}");
        let mut state = self.shared.state();
        if state.problem.as_ref() != Some(&text) {
            tracing::warn!(origin, events = message.events.len(), %error, "webhook message: {what}");
        }
        state.problem = Some(text);
    }
}

/// Returns a random duration between half and all of a delay, so that senders that failed together
/// do not retry together.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without random numbers the full delay is used.
    let share = SystemRandom::new().fill(&mut byte).map_or(1.0, |()| f64::from(byte[0]) / 255.0);
    pause.mul_f64(0.5 + share / 2.0)
}

/// Returns a message id: 32 random hexadecimal digits, or the time if no random numbers are
/// available.
fn id() -> String {
    let mut bytes = [0; 16];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        // Ids differ even without random numbers: no two messages are sent within the same
        // nanosecond.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return since.as_nanos().to_string();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}
