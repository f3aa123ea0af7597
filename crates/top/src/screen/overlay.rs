//! Pages that lie over the table.

use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Wrap},
};

use super::Theme;
use crate::{Model, Screen, kill::Plan, model::Overlay};

/// Draws the page that lies over the table, if one does, from as far down as it is scrolled. Gives how far
/// that can be at most.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) -> usize {
    let (title, lines) = match &model.overlay {
        Overlay::None | Overlay::Prompt(_) => return 0,
        Overlay::Help => ("Keys", help(model, theme)),
        Overlay::Privileges => ("What this role cannot see or do", privileges(model, theme)),
        Overlay::Detail(lines) => ("Row", detail(lines, theme)),
        Overlay::Plan(plan) => ("Plan, for any parameters; nothing was run", planned(plan, theme)),
        Overlay::Confirm(plan) => ("Are these the ones?", confirm(plan, theme, area.height)),
    };
    let (width, height) = (area.width.saturating_sub(2).max(1), area.height.saturating_sub(2));
    let rows = |line: &Line<'_>| line.width().div_ceil(usize::from(width)).max(1);
    let hidden = lines.iter().map(rows).sum::<usize>().saturating_sub(usize::from(height));
    let scroll = model.scroll.min(hidden);
    let mut block = Block::bordered().title(title);
    if hidden > 0 {
        block = block.title_bottom(format!(" {} more lines: ↓ ", hidden - scroll));
    }
    let page = Paragraph::new(lines).block(block).wrap(Wrap { trim: false });
    let page = page.scroll((u16::try_from(scroll).unwrap_or(u16::MAX), 0));
    frame.render_widget(Clear, area);
    frame.render_widget(page, area);
    hidden
}

/// Made of the table that keys are looked up in, so that it cannot say anything else.
fn help<'a>(model: &Model, theme: &Theme) -> Vec<Line<'a>> {
    let settings = &model.settings;
    let mut lines: Vec<Line<'a>> = Vec::new();
    let screens: Vec<_> = Screen::all()
        .enumerate()
        .map(|(at, screen)| match at {
            0..=8 => format!("{}:{}", at + 1, screen.name()),
            9 => format!("0:{}", screen.name()),
            _ => screen.name().to_owned(),
        })
        .collect();
    lines.push(Line::styled(screens.join("  "), theme.strong));
    for binding in settings.keymap.bindings(settings.is_read_only) {
        let keys: Vec<_> = binding.keys.iter().map(ToString::to_string).collect();
        lines.push(Line::raw(format!("{:<14} {}", keys.join(" "), binding.help)));
    }
    lines.push(Line::raw(
        "marks: ! slow, L waits for a lock, B blocks others, x idle in a transaction, + tagged",
    ));
    lines
}

fn privileges<'a>(model: &Model, theme: &Theme) -> Vec<Line<'a>> {
    let missing = model.snapshot().map(|snapshot| snapshot.missing.to_vec()).unwrap_or_default();
    if missing.is_empty() {
        return vec![Line::raw("Nothing is hidden from it.")];
    }
    let mut lines = Vec::new();
    for missing in missing {
        lines.push(Line::raw(format!("{}:", missing.what)));
        lines.push(Line::styled(format!("    {};", missing.remedy), theme.strong));
    }
    lines
}

fn detail<'a>(lines: &'a [(String, String)], theme: &Theme) -> Vec<Line<'a>> {
    let mut shown = Vec::new();
    for (title, value) in lines {
        let mut parts = value.lines();
        let first = parts.next().unwrap_or_default();
        shown.push(Line::from(vec![
            Span::styled(format!("{title:<14} "), theme.strong),
            Span::raw(first),
        ]));
        shown.extend(parts.map(Line::raw));
    }
    shown
}

fn planned<'a>(
    plan: &'a Option<Result<howdah_collect::Plan, String>>,
    theme: &Theme,
) -> Vec<Line<'a>> {
    match plan {
        None => vec![Line::styled("asking the server…", theme.faint)],
        Some(Err(reason)) => vec![Line::styled(reason.as_str(), theme.bad)],
        Some(Ok(plan)) => plan.lines.iter().map(|line| Line::raw(line.as_str())).collect(),
    }
}

fn confirm<'a>(plan: &'a Plan, theme: &Theme, height: u16) -> Vec<Line<'a>> {
    let verb = plan.action.as_str();
    let mut lines = Vec::new();
    // Some lines are kept for those who are spared and for the question.
    let room = usize::from(height).saturating_sub(9).max(3);
    for listed in plan.listed.iter().take(room) {
        lines.push(Line::from(vec![
            Span::styled(format!("{verb} {}", listed.who), theme.strong),
            Span::raw(format!("  {}  {}", listed.why, listed.query)),
        ]));
    }
    if plan.listed.len() > room {
        lines.push(Line::raw(format!("… and {} more", plan.listed.len() - room)));
    }
    for excluded in plan.excluded.iter().take(3) {
        lines.push(Line::styled(
            format!("spared {}: {}", excluded.who, excluded.reason),
            theme.faint,
        ));
    }
    if plan.excluded.len() > 3 {
        lines.push(Line::styled(
            format!("… and {} more spared", plan.excluded.len() - 3),
            theme.faint,
        ));
    }
    let other = match plan.action {
        howdah_collect::Action::Cancel => "  t: terminate them instead",
        howdah_collect::Action::Terminate => "",
    };
    lines.push(Line::raw(""));
    lines.push(match plan.listed.len() {
        0 => Line::styled("nobody is left on the list: n goes back", theme.strong),
        count => Line::styled(format!("y: {verb} these {count}  n: do not{other}"), theme.strong),
    });
    lines
}
