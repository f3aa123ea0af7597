//! The report as an HTML page without scripts or links to other files.

use howdah_compare::Comparison;

use super::{RehearsalReport, junit::escape, text::text};
use crate::TableStyle;

/// Columns of the text on the page, which scrolls.
const WIDTH: usize = 200;

/// The report as a page: the text report in a fixed font.
pub fn html(report: &RehearsalReport) -> String {
    let Comparison { verdict, .. } = &report.comparison;
    let style = TableStyle { width: WIDTH, ..TableStyle::default() };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>howdah rehearsal: {verdict}</title>\n\
         <style>body {{ margin: 2em; }} pre {{ overflow-x: auto; }}</style>\n</head>\n<body>\n\
         <h1>{}</h1>\n<pre>{}</pre>\n</body>\n</html>\n",
        escape(&report.summary()),
        escape(&text(report, &style))
    )
}
