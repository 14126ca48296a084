//! Tables for people.

/// Columns of equal width under their headings; those whose cells are all numbers, or `-` for none, stand to the
/// right. Ends with a line feed.
pub fn aligned(heading: &[&str], rows: &[Vec<String>]) -> String {
    let column = |index: usize| rows.iter().filter_map(move |row| row.get(index).map(String::as_str));
    let widths: Vec<(usize, bool)> = heading
        .iter()
        .enumerate()
        .map(|(index, head)| {
            let width = column(index).chain([*head]).map(|cell| cell.chars().count()).max();
            let number = |cell: &str| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit());
            (width.unwrap_or(0), !rows.is_empty() && column(index).all(number))
        })
        .collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut row = String::new();
        for (cell, &(width, right)) in cells.zip(&widths) {
            if right {
                row.push_str(&format!("{cell:>width$}  "));
            } else {
                row.push_str(&format!("{cell:width$}  "));
            }
        }
        text.push_str(row.trim_end());
        text.push('\n');
    };
    line(&mut heading.iter().copied());
    rows.iter().for_each(|row| line(&mut row.iter().map(String::as_str)));
    text
}

/// A count of bytes with its unit, for people.
pub fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// A number with its thousands told apart.
pub fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// A number of things, the noun in its right form.
pub fn counted(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right_and_words_left() {
        let rows = [["a", "5"], ["longer", "12"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&["name", "n"], &rows), "name     n\na        5\nlonger  12\n");
        assert_eq!(aligned(&["name", "n"], &[]), "name  n\n");
        let rows = [["a", "-"], ["b", "12"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&["name", "n"], &rows), "name   n\na      -\nb     12\n");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!(
            [0, 1, 1200].map(|n| counted(n, "row")),
            ["0 rows", "1 row", "1,200 rows"]
        );
    }
}
