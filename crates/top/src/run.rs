//! A person in front of a screen, from the first picture to the last.
//!
//! One loop has the model and draws. Keys, standings of servers and results of signals come to it as
//! messages from threads that may wait as long as they like.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use howdah_collect::{Action, SignalTarget, Signalled, Signals, VIEWS};
use howdah_connect::Target;
use ratatui::crossterm::event::{self, Event, KeyEventKind, MouseEventKind};

use crate::{
    AlertEngine, Model, Settings,
    history::{History, Keeper},
    kill::APPLICATION,
    model::{Effect, Message},
    pooler::Poolers,
    sampler::{Sampler, Wanted, with_causes},
    screen::{self, Palette, Theme},
    terminal::Screen,
};

/// A server to watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// What to call it.
    pub name: String,
    /// How to reach it.
    pub target: Target,
    /// What knows who is behind its sessions.
    pub poolers: Poolers,
}

/// Longest that the picture stays as it is: ages on it grow.
const REDRAW: Duration = Duration::from_secs(1);

/// The same while a recording is played.
const FRAME: Duration = Duration::from_millis(200);

/// Shows the servers until somebody quits, or `is_over` says so.
///
/// # Errors
///
/// The terminal cannot be used, or there is no thread to be had.
pub fn run(
    servers: Vec<Watch>,
    settings: Settings,
    lookout: &AlertEngine,
    keeper: &Keeper,
    with_colours: bool,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let (sender, messages) = channel();
    let model = Model::new(servers.iter().map(|watch| watch.name.clone()), settings);
    let model = model.with_history(Arc::clone(&keeper.history));
    let wanted = Wanted { all_views: keeper.wants_all_views(), ..model.wanted() };
    let plan_user = model.settings.plan_user.clone();
    let watching = Watching::start(servers, wanted, plan_user, lookout, keeper, &sender)?;
    show(model, &messages, sender, with_colours, is_over, |effect| watching.act(effect))
}

/// Shows a recording until somebody quits, or `is_over` says so. `name`: what to call it.
///
/// # Errors
///
/// The terminal cannot be used, or there is no thread to be had.
pub fn replay(
    name: String,
    history: History,
    settings: Settings,
    with_colours: bool,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let (sender, messages) = channel();
    let names = history.names().to_vec();
    let model = Model::new(names, settings).replaying(name, Arc::new(history));
    // There is no server that an effect could be for.
    show(model, &messages, sender, with_colours, is_over, |_| Ok(()))
}

/// Draws, and does what messages ask for, until the end.
fn show(
    mut model: Model,
    messages: &Receiver<Message>,
    sender: Sender<Message>,
    with_colours: bool,
    is_over: impl Fn() -> bool,
    act: impl Fn(Effect) -> io::Result<()>,
) -> io::Result<()> {
    let theme = Theme::of(if with_colours { model.settings.palette } else { Palette::Mono });
    let mut screen = Screen::take(model.has_mouse)?;
    read_keys(sender)?;
    let mut last = Instant::now();
    loop {
        model.pass(last.elapsed());
        last = Instant::now();
        screen.draw(|frame| screen::draw(frame, &mut model, &theme))?;
        let patience = if model.is_playing() { FRAME } else { REDRAW };
        for message in next(messages, patience) {
            for effect in model.update(message) {
                match effect {
                    Effect::Quit => return Ok(()),
                    Effect::Copy(text) => screen.copy(&text)?,
                    Effect::Mouse(has_mouse) => screen.set_mouse(has_mouse)?,
                    Effect::Suspend => screen.suspend()?,
                    effect => act(effect)?,
                }
            }
        }
        if is_over() {
            return Ok(());
        }
    }
}

/// The messages that are there; waits for one, but not longer than a picture may stay.
fn next(messages: &Receiver<Message>, patience: Duration) -> Vec<Message> {
    let first = match messages.recv_timeout(patience) {
        Ok(message) => message,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Vec::new(),
    };
    std::iter::once(first).chain(messages.try_iter()).collect()
}

/// Reads the keyboard until nobody listens any more.
fn read_keys(sender: Sender<Message>) -> io::Result<()> {
    let read = move || {
        loop {
            let message = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Message::Key(key),
                Ok(Event::Resize(..)) => Message::Resize,
                Ok(Event::Mouse(mouse)) if mouse.kind != MouseEventKind::Moved => {
                    Message::Mouse(mouse)
                }
                Ok(_) => continue,
                Err(_) => return,
            };
            if sender.send(message).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".to_owned()).spawn(read).map(drop)
}

/// The samplers, and what it takes to act.
struct Watching {
    servers: Vec<Watch>,
    samplers: Vec<Sampler>,
    lookout: AlertEngine,
    sender: Sender<Message>,
    all_views: bool,
    whole_texts: bool,
    plan_user: Option<String>,
}

impl Watching {
    fn start(
        mut servers: Vec<Watch>,
        wanted: Wanted,
        plan_user: Option<String>,
        lookout: &AlertEngine,
        keeper: &Keeper,
        sender: &Sender<Message>,
    ) -> io::Result<Self> {
        for watch in &mut servers {
            watch.target = watch.target.with_application_name(APPLICATION);
        }
        let start = |(at, watch): (usize, &Watch)| {
            let sender = sender.clone();
            let mut sentry = lookout.for_server(&watch.name);
            let mut keep = keeper.for_server(at);
            Sampler::start(watch.target.clone(), watch.poolers.clone(), wanted, move |standing| {
                let unkept = keep(&standing);
                let sight = sentry.look(&standing);
                // Nobody listens any more when it is over.
                let _ = sender.send(Message::Standing(at, standing));
                let _ = sender.send(Message::Sight(at, sight));
                if let Some(trouble) = unkept {
                    let _ = sender.send(Message::Trouble(trouble));
                }
            })
        };
        let samplers = servers.iter().enumerate().map(start).collect::<io::Result<_>>()?;
        let Wanted { all_views, whole_texts, .. } = wanted;
        let (lookout, sender) = (lookout.clone(), sender.clone());
        Ok(Self { servers, samplers, lookout, sender, all_views, whole_texts, plan_user })
    }

    fn act(&self, effect: Effect) -> io::Result<()> {
        match effect {
            Effect::Want { interval, idle_texts, view } => {
                let view = view.and_then(|name| VIEWS.iter().find(|view| view.name == name));
                let (all_views, whole_texts) = (self.all_views, self.whole_texts);
                for sampler in &self.samplers {
                    sampler.want(Wanted { interval, idle_texts, view, all_views, whole_texts });
                }
                Ok(())
            }
            Effect::Signal(server, action, listed) => {
                let Some(watch) = self.servers.get(server) else { return Ok(()) };
                let (watch, sender) = (watch.clone(), self.sender.clone());
                let audit = self.lookout.audit();
                let send = move || {
                    let suspects: Vec<_> = listed.iter().map(|listed| listed.suspect).collect();
                    let results = signal(&watch.target, action, &suspects);
                    let role = watch.target.user();
                    let written = audit
                        .map(|audit| audit.write(&watch.name, role, action, &listed, &results));
                    // Nobody listens any more when it is over.
                    let _ = sender.send(Message::Signalled(results));
                    if let Some(Err(error)) = written {
                        let _ = sender.send(Message::Trouble(with_causes(&error)));
                    }
                };
                std::thread::Builder::new().name("signals".to_owned()).spawn(send).map(drop)
            }
            Effect::Plan(server, backend) => {
                let Some(watch) = self.servers.get(server) else { return Ok(()) };
                let user = self.plan_user.as_deref().unwrap_or(watch.target.user());
                let (target, sender) = (watch.target.with_user(user), self.sender.clone());
                let ask = move || {
                    let plan = howdah_collect::plan(&target, &backend);
                    let plan = plan.map_err(|error| with_causes(&error));
                    // Nobody listens any more when it is over.
                    let _ = sender.send(Message::Planned(plan));
                };
                std::thread::Builder::new().name("plan".to_owned()).spawn(ask).map(drop)
            }
            // The loop's own.
            Effect::Quit | Effect::Copy(_) | Effect::Mouse(_) | Effect::Suspend => Ok(()),
        }
    }
}

/// Sends signals over a connection of their own, and tells what became of each.
pub fn signal(
    target: &Target,
    action: Action,
    suspects: &[SignalTarget],
) -> Vec<(SignalTarget, Result<Signalled, String>)> {
    let mut signals = Signals::connect(target);
    let mut send = |suspect: &SignalTarget| match &mut signals {
        Ok(signals) => signals.send(action, *suspect).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let results: Vec<_> = suspects.iter().map(|suspect| (*suspect, send(suspect))).collect();
    for (suspect, result) in &results {
        tracing::info!(pid = suspect.pid, action = action.as_str(), ?result, "signal");
    }
    results
}
