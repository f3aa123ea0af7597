//! The interactive mode: shows servers, or a recording, on the terminal.
//!
//! One loop owns the model and draws. Keys, server states and outcomes of signals arrive as
//! messages from threads that may block.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use howdah_collect::{SignalAction, SignalConnection, SignalOutcome, SignalTarget, VIEWS};
use howdah_connect::ConnectTarget;
use ratatui::crossterm::event::{self, Event, KeyEventKind, MouseEventKind};

use crate::{
    AlertEngine, Model, TopSettings,
    history::{HistoryWriter, SnapshotHistory},
    model::{ModelEffect, ModelMessage, StatusNotice},
    sampler::{APPLICATION_NAME, SampleRequest, ServerSampler, WatchTarget, with_causes},
    screen::{self, Palette, Theme},
    terminal::TerminalScreen,
};

/// Maximum time between redraws, because displayed ages increase.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time between redraws during a replay.
const REPLAY_FRAME_INTERVAL: Duration = Duration::from_millis(200);

/// Shows the servers until the user quits or `should_stop` returns true.
///
/// # Errors
///
/// The terminal cannot be used, or a thread could not be started.
pub fn run(
    servers: Vec<WatchTarget>,
    settings: TopSettings,
    engine: &AlertEngine,
    history_writer: &HistoryWriter,
    with_colours: bool,
    should_stop: impl Fn() -> bool,
) -> io::Result<()> {
    let (sender, messages) = channel();
    let model = Model::new(servers.iter().map(|watch| watch.name.clone()), settings);
    let model = model.with_history(Arc::clone(&history_writer.history));
    let request =
        SampleRequest { all_views: history_writer.needs_all_views(), ..model.sample_request() };
    let plan_user = model.settings.plan_user.clone();
    let watching =
        LiveServers::start(servers, request, plan_user, engine, history_writer, &sender)?;
    show(model, &messages, sender, with_colours, should_stop, |effect| watching.apply(effect))
}

/// Plays a recording called `name` until the user quits or `should_stop` returns true.
///
/// # Errors
///
/// The terminal cannot be used, or a thread could not be started.
pub fn replay(
    name: String,
    history: SnapshotHistory,
    settings: TopSettings,
    with_colours: bool,
    should_stop: impl Fn() -> bool,
) -> io::Result<()> {
    let (sender, messages) = channel();
    let names = history.names().to_vec();
    let model = Model::new(names, settings).replaying(name, Arc::new(history));
    // A replay has no server that an effect could apply to.
    show(model, &messages, sender, with_colours, should_stop, |_| Ok(()))
}

/// Draws the model and applies its effects until the user quits or `should_stop` returns true.
fn show(
    mut model: Model,
    messages: &Receiver<ModelMessage>,
    sender: Sender<ModelMessage>,
    with_colours: bool,
    should_stop: impl Fn() -> bool,
    act: impl Fn(ModelEffect) -> io::Result<()>,
) -> io::Result<()> {
    let theme = Theme::new(if with_colours { model.settings.palette } else { Palette::Mono });
    let mut screen = TerminalScreen::acquire(model.has_mouse)?;
    read_keys(sender)?;
    let mut last = Instant::now();
    loop {
        model.advance_replay(last.elapsed());
        last = Instant::now();
        screen.draw(|frame| screen::draw(frame, &mut model, &theme))?;
        let timeout = if model.is_playing() { REPLAY_FRAME_INTERVAL } else { REDRAW_INTERVAL };
        for message in receive_batch(messages, timeout) {
            for effect in model.update(message) {
                match effect {
                    ModelEffect::Quit => return Ok(()),
                    ModelEffect::Copy(text) => screen.copy(&text)?,
                    ModelEffect::Mouse(has_mouse) => screen.set_mouse(has_mouse)?,
                    ModelEffect::Suspend => screen.suspend()?,
                    ModelEffect::SaveColumns(path, screen, columns) => {
                        let outcome = columns.save(screen, &path);
                        model.notice = Some(saved_notice(&path, &outcome));
                    }
                    effect => act(effect)?,
                }
            }
        }
        if should_stop() {
            return Ok(());
        }
    }
}

fn saved_notice(path: &Path, outcome: &io::Result<()>) -> StatusNotice {
    let path = path.display();
    let text = match outcome {
        Ok(()) => format!("columns are saved in {path}"),
        Err(error) => format!("columns are not saved: cannot write {path}: {error}"),
    };
    StatusNotice { text, is_bad: outcome.is_err() }
}

/// Waits for a message, at most for `timeout`, and returns it with all others that are queued.
fn receive_batch(messages: &Receiver<ModelMessage>, timeout: Duration) -> Vec<ModelMessage> {
    let first = match messages.recv_timeout(timeout) {
        Ok(message) => message,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Vec::new(),
    };
    std::iter::once(first).chain(messages.try_iter()).collect()
}

/// Starts a thread that sends keys, mouse events and resizes as messages, until the receiver is
/// gone or the terminal cannot be read.
fn read_keys(sender: Sender<ModelMessage>) -> io::Result<()> {
    let read = move || {
        loop {
            let message = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => ModelMessage::Key(key),
                Ok(Event::Resize(..)) => ModelMessage::Resize,
                Ok(Event::Mouse(mouse)) if mouse.kind != MouseEventKind::Moved => {
                    ModelMessage::Mouse(mouse)
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

/// The watched servers, with their samplers and everything needed to apply effects to them.
struct LiveServers {
    servers: Vec<WatchTarget>,
    samplers: Vec<ServerSampler>,
    engine: AlertEngine,
    sender: Sender<ModelMessage>,
    all_views: bool,
    full_texts: bool,
    plan_user: Option<String>,
}

impl LiveServers {
    fn start(
        mut servers: Vec<WatchTarget>,
        request: SampleRequest,
        plan_user: Option<String>,
        engine: &AlertEngine,
        history_writer: &HistoryWriter,
        sender: &Sender<ModelMessage>,
    ) -> io::Result<Self> {
        for watch in &mut servers {
            watch.target = watch.target.with_application_name(APPLICATION_NAME);
        }
        let start = |(at, watch): (usize, &WatchTarget)| {
            let sender = sender.clone();
            let mut monitor = engine.for_server(&watch.name);
            let mut store = history_writer.for_server(at);
            ServerSampler::start(watch, request, move |health| {
                let recording_problem = store(&health);
                let alert_view = monitor.observe(&health);
                // Sending fails only once the receiver is gone, at the end.
                let _ = sender.send(ModelMessage::Health(at, health));
                let _ = sender.send(ModelMessage::Alerts(at, alert_view));
                if let Some(problem) = recording_problem {
                    let _ = sender.send(ModelMessage::Problem(problem));
                }
            })
        };
        let samplers = servers.iter().enumerate().map(start).collect::<io::Result<_>>()?;
        let SampleRequest { all_views, full_texts: whole_texts, .. } = request;
        let (engine, sender) = (engine.clone(), sender.clone());
        Ok(Self {
            servers,
            samplers,
            engine,
            sender,
            all_views,
            full_texts: whole_texts,
            plan_user,
        })
    }

    fn apply(&self, effect: ModelEffect) -> io::Result<()> {
        match effect {
            ModelEffect::Sample { interval, idle_texts, view, session } => {
                let view = view.and_then(|name| VIEWS.iter().find(|view| view.name == name));
                let (all_views, whole_texts) = (self.all_views, self.full_texts);
                for (at, sampler) in self.samplers.iter().enumerate() {
                    let session = session.filter(|(server, _)| *server == at);
                    sampler.set_request(SampleRequest {
                        interval,
                        idle_texts,
                        view,
                        all_views,
                        full_texts: whole_texts,
                        sizes: true,
                        session: session.map(|(_, pid)| pid),
                    });
                }
                Ok(())
            }
            ModelEffect::Signal(server, action, planned) => {
                let Some(watch) = self.servers.get(server) else { return Ok(()) };
                let (watch, sender) = (watch.clone(), self.sender.clone());
                let audit = self.engine.audit();
                let send = move || {
                    let targets: Vec<_> = planned.iter().map(|planned| planned.target).collect();
                    let results = send_signals(&watch.target, action, &targets);
                    let role = watch.target.user();
                    let written = audit
                        .map(|audit| audit.write(&watch.name, role, action, &planned, &results));
                    // Sending fails only once the receiver is gone, at the end.
                    let _ = sender.send(ModelMessage::SignalOutcomes(results));
                    if let Some(Err(error)) = written {
                        let _ = sender.send(ModelMessage::Problem(with_causes(&error)));
                    }
                };
                std::thread::Builder::new().name("signals".to_owned()).spawn(send).map(drop)
            }
            ModelEffect::Plan(server, backend, number) => {
                let Some(watch) = self.servers.get(server) else { return Ok(()) };
                let user = self.plan_user.as_deref().unwrap_or(watch.target.user());
                let (target, sender) = (watch.target.with_user(user), self.sender.clone());
                let ask = move || {
                    let plan = howdah_collect::explain_generic(&target, &backend);
                    let plan = plan.map_err(|error| with_causes(&error));
                    // Sending fails only once the receiver is gone, at the end.
                    let _ = sender.send(ModelMessage::Plan(number, plan));
                };
                std::thread::Builder::new().name("plan".to_owned()).spawn(ask).map(drop)
            }
            // Handled by the loop itself.
            ModelEffect::Quit
            | ModelEffect::Copy(_)
            | ModelEffect::Mouse(_)
            | ModelEffect::Suspend
            | ModelEffect::SaveColumns(..) => Ok(()),
        }
    }
}

/// Sends signals over a separate connection, and returns the outcome of each.
pub fn send_signals(
    target: &ConnectTarget,
    action: SignalAction,
    targets: &[SignalTarget],
) -> Vec<(SignalTarget, Result<SignalOutcome, String>)> {
    let mut signals = SignalConnection::connect(target);
    let mut send = |signal_target: &SignalTarget| match &mut signals {
        Ok(signals) => signals.send(action, *signal_target).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let results: Vec<_> =
        targets.iter().map(|signal_target| (*signal_target, send(signal_target))).collect();
    for (signal_target, result) in &results {
        tracing::info!(pid = signal_target.pid, action = action.as_str(), ?result, "signal");
    }
    results
}
