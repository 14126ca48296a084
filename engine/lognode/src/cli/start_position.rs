//! Where `consume` begins, as the command line says it.

use lognode_client::{Offset, Start, Timetick};

/// Parses `earliest`, `latest`, `offset:N` or `timetick:T`, for clap.
pub fn parse(text: &str) -> Result<Start, String> {
    let number = |digits: &str| {
        digits
            .parse::<u64>()
            .map_err(|_| format!("{digits:?} is no whole number of 64 bits"))
    };
    match text.split_once(':') {
        None if text == "earliest" => Ok(Start::Earliest),
        None if text == "latest" => Ok(Start::Latest),
        Some(("offset", digits)) => number(digits).map(|n| Start::Offset(Offset(n))),
        Some(("timetick", digits)) => number(digits).map(|n| Start::Timetick(Timetick(n))),
        _ => Err("use earliest, latest, offset:N or timetick:T".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms_parse_and_nothing_else() {
        assert_eq!(parse("earliest"), Ok(Start::Earliest));
        assert_eq!(parse("latest"), Ok(Start::Latest));
        assert_eq!(parse("offset:7"), Ok(Start::Offset(Offset(7))));
        assert_eq!(
            parse("timetick:18446744073709551615"),
            Ok(Start::Timetick(Timetick::MAX))
        );
        for wrong in [
            "",
            "Earliest",
            "7",
            "offset:",
            "offset:-1",
            "offset:x",
            "tick:1",
            "timetick:1:2",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
