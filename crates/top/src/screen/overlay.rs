//! Pages on top of the table.

use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Wrap},
};

use super::{Theme, help, rows::with_spaces, session};
use crate::{
    Model,
    model::{ChooserEntry, ColumnChooser, Overlay},
    signal_plan::SignalPlan,
};

/// Draws the open page, if any, scrolled by the model's offset. Returns the maximum offset in
/// lines.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) -> usize {
    let (title, lines) = match &model.overlay {
        Overlay::None | Overlay::Prompt(_) => return 0,
        Overlay::Help => ("Keys", help::lines(model, theme, (area.width, area.height))),
        Overlay::Session => (
            "Session; Esc: back  c x: cancel, terminate  e: plan  y: copy",
            session::lines(model, theme, area.width),
        ),
        Overlay::Columns(chooser) => return columns(frame, area, chooser, theme),
        Overlay::Privileges => ("What this role cannot see or do", privileges(model, theme)),
        Overlay::Detail(lines) => ("Row", detail(lines, theme)),
        Overlay::Plan(plan) => ("Generic plan; nothing was executed", generic_plan(plan, theme)),
        Overlay::Confirm(plan) => ("Send these signals?", confirm(plan, theme, area.height)),
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

/// Draws the list of columns, scrolled so that the selected one is visible.
fn columns(frame: &mut Frame<'_>, area: Rect, chooser: &ColumnChooser, theme: &Theme) -> usize {
    let entry = |(at, entry): (usize, &ChooserEntry)| {
        let mark = if entry.is_shown { 'x' } else { ' ' };
        let text = format!(" [{mark}] {:<16} {}", entry.title, entry.help);
        let style = if at == chooser.selected { theme.selected } else { Style::new() };
        Line::styled(text, style)
    };
    let lines: Vec<Line<'_>> = chooser.entries.iter().enumerate().map(entry).collect();
    let height = usize::from(area.height.saturating_sub(2));
    let first = (chooser.selected + 1).saturating_sub(height);
    let block = Block::bordered()
        .title(format!("Columns of {}", chooser.screen_name()))
        .title_bottom(" Space: toggle  a: all  Enter: use  s: save  Esc: cancel ");
    let page = Paragraph::new(lines).block(block);
    frame.render_widget(Clear, area);
    frame.render_widget(page.scroll((u16::try_from(first).unwrap_or(u16::MAX), 0)), area);
    0
}

fn privileges<'a>(model: &Model, theme: &Theme) -> Vec<Line<'a>> {
    let missing = model.snapshot().map(|snapshot| snapshot.missing.to_vec()).unwrap_or_default();
    if missing.is_empty() {
        return vec![Line::raw("No privileges are missing.")];
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
        let mut parts = value.lines().map(with_spaces);
        let first = parts.next().unwrap_or_default();
        shown.push(Line::from(vec![
            Span::styled(format!("{title:<14} "), theme.strong),
            Span::raw(first),
        ]));
        shown.extend(parts.map(Line::raw));
    }
    shown
}

fn generic_plan<'a>(
    plan: &'a Option<Result<howdah_collect::GenericPlan, String>>,
    theme: &Theme,
) -> Vec<Line<'a>> {
    match plan {
        None => vec![Line::styled("requesting the plan…", theme.faint)],
        Some(Err(reason)) => vec![Line::styled(reason.as_str(), theme.bad)],
        Some(Ok(plan)) => plan.lines.iter().map(|line| Line::raw(line.as_str())).collect(),
    }
}

fn confirm<'a>(plan: &'a SignalPlan, theme: &Theme, height: u16) -> Vec<Line<'a>> {
    let verb = plan.action.as_str();
    let mut lines = Vec::new();
    // Reserve lines for the spared sessions and the question.
    let room = usize::from(height).saturating_sub(9).max(3);
    for planned in plan.signals.iter().take(room) {
        lines.push(Line::from(vec![
            Span::styled(format!("{verb} {}", planned.session), theme.strong),
            Span::raw(format!("  {}  {}", planned.reason, planned.query)),
        ]));
    }
    if plan.signals.len() > room {
        lines.push(Line::raw(format!("… and {} more", plan.signals.len() - room)));
    }
    for spared in plan.spared.iter().take(3) {
        lines.push(Line::styled(
            format!("spared {}: {}", spared.session, spared.reason),
            theme.faint,
        ));
    }
    if plan.spared.len() > 3 {
        lines.push(Line::styled(
            format!("… and {} more spared", plan.spared.len() - 3),
            theme.faint,
        ));
    }
    let other = match plan.action {
        howdah_collect::SignalAction::Cancel => "  t: terminate them instead",
        howdah_collect::SignalAction::Terminate => "",
    };
    lines.push(Line::raw(""));
    lines.push(match plan.signals.len() {
        0 => Line::styled("no session is left on the list: any key goes back", theme.strong),
        count => Line::styled(format!("y: {verb} these {count}  n: do not{other}"), theme.strong),
    });
    lines
}
