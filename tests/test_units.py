"""Quantities as text: what is read, what is refused and with which words, what is printed."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from wattree.errors import UnitError
from wattree.report.words import count, quantity
from wattree.units import (
    UNITS,
    counted,
    format_bytes,
    format_quantity,
    format_time,
    parse_quantity,
)

DIMENSIONS_AND_UNITS = [(dimension, unit) for dimension in UNITS for unit in UNITS[dimension]]
BYTE_UNITS = ", ".join(UNITS["bytes"])


@pytest.mark.parametrize(
    ("text", "dimension", "expected"),
    [
        ("450 GB/s", "bytes_per_s", 450e9),
        ("400 Gbit/s", "bytes_per_s", 50e9),
        ("200Gbps", "bytes_per_s", 25e9),
        ("80 GiB", "bytes", 80 * 1024**3),
        ("80 GB", "bytes", 80e9),
        ("1_000 B", "bytes", 1000),
        ("1,000 B", "bytes", 1000),
        ("5 us", "s", 5e-6),
        ("5 µs", "s", 5e-6),
        ("1.5 h", "s", 5400),
        ("2 d", "s", 172_800),
        ("30 days", "s", 2_592_000),
        ("1 minute", "s", 60),
        (".5 ms", "s", 5e-4),
        ("1e-3 s", "s", 1e-3),
        ("+3 s", "s", 3),
        ("  700 W  ", "w", 700),
        ("250 mW", "w", 0.25),
        ("2 kWh", "j", 7.2e6),
        ("3 MJ", "j", 3e6),
        ("989.4 TFLOP/s", "flop_per_s", 989.4e12),
        ("1.98 GHz", "hz", 1.98e9),
        ("30000 USD", "usd", 30_000),
        ("3.6 $/h", "usd_per_s", 1e-3),
        ("0.36 USD/kWh", "usd_per_j", 1e-7),
        ("$0.36/kWh", "usd_per_j", 1e-7),
        ("$30,000", "usd", 30_000),
        ("360 kg/MWh", "gco2e_per_j", 1e-4),
        ("360 gCO2e/kWh", "gco2e_per_j", 1e-4),
    ],
)
def test_a_quantity_is_read_into_the_si_unit(text: str, dimension: str, expected: float) -> None:
    """Values worked out by hand, one or more for every dimension."""
    assert parse_quantity(text, dimension) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (450, "found 450, expected a quantity with its unit, such as '1 B'"),
        (None, "is missing, expected a quantity with its unit, such as '1 B'"),
        (True, "found True, expected a quantity with its unit, such as '1 B'"),
        (["1 B"], "found ['1 B'], expected a quantity with its unit, such as '1 B'"),
        ("", "found '', expected a number and a unit, such as '1 B'"),
        ("450", "found '450', expected a number and a unit, such as '1 B'"),
        ("GB", "found 'GB', expected a number and a unit, such as '1 B'"),
        ("many GB", "found 'many GB', expected a number and a unit, such as '1 B'"),
        ("\u0663 GB", "found '\u0663 GB', expected a number and a unit, such as '1 B'"),
        ("nan GB", "found 'nan GB', expected a number and a unit, such as '1 B'"),
        ("inf GB", "found 'inf GB', expected a number and a unit, such as '1 B'"),
        ("-1 GB", "found '-1 GB', expected a finite quantity above zero"),
        ("0 GB", "found '0 GB', expected a finite quantity above zero"),
        ("1e999 GB", "found '1e999 GB', expected a finite quantity above zero"),
        (
            "80 GiBs",
            f"unknown unit 'GiBs' in '80 GiBs'; did you mean 'GiB'? expected one of {BYTE_UNITS}",
        ),
        (
            "80 gib",
            f"unknown unit 'gib' in '80 gib'; did you mean 'GiB'? expected one of {BYTE_UNITS}",
        ),
        ("80 parsec", f"unknown unit 'parsec' in '80 parsec'; expected one of {BYTE_UNITS}"),
        ("1,5 GB", "found '1,5 GB', expected a decimal point, as in '1.5 B'"),
        ("1,5", "found '1,5', expected a decimal point, as in '1.5 B'"),
        ("80 GB GB", f"unknown unit 'GB GB' in '80 GB GB'; expected one of {BYTE_UNITS}"),
    ],
)
def test_a_bad_quantity_is_refused_in_full_words(text: object, message: str) -> None:
    """Users meet these messages in every input file."""
    with pytest.raises(UnitError) as caught:
        parse_quantity(text, "bytes")

    assert str(caught.value) == message


def test_the_unit_of_another_dimension_is_refused() -> None:
    """`GB` where `GB/s` is meant is the commonest slip."""
    with pytest.raises(UnitError, match=r"^unknown unit 'GB' in '450 GB'; did you mean 'GB/s'\? "):
        parse_quantity("450 GB", "bytes_per_s")


def test_zero_is_allowed_on_request() -> None:
    """A latency may be nothing; a bandwidth may not."""
    assert parse_quantity("0 us", "s", positive=False) == 0


def test_a_negative_number_is_refused_even_where_zero_is_allowed() -> None:
    """No quantity in Wattree is negative."""
    with pytest.raises(UnitError) as caught:
        parse_quantity("-1 us", "s", positive=False)

    assert str(caught.value) == "found '-1 us', expected a finite quantity of zero or more"


@pytest.mark.parametrize(
    ("one", "same", "dimension"),
    [
        ("56 kgCO2e/MWh", "56 g/kWh", "gco2e_per_j"),
        ("0.4 tCO2e/MWh", "0.4 kgCO2e/kWh", "gco2e_per_j"),
        ("120 USD/MWh", "0.12 $/kWh", "usd_per_j"),
        ("4 y", "1460 d", "s"),
    ],
)
def test_markets_and_grids_have_units_of_their_own(one: str, same: str, dimension: str) -> None:
    """They quote megawatt-hours; lifetimes are in years."""
    assert parse_quantity(one, dimension) == pytest.approx(parse_quantity(same, dimension))


@given(
    value=st.floats(min_value=1e-12, max_value=1e15),
    dimension_and_unit=st.sampled_from(DIMENSIONS_AND_UNITS),
)
def test_every_unit_scales_every_number(value: float, dimension_and_unit: tuple[str, str]) -> None:
    """Whatever Python writes for a float is read back to the last digit."""
    dimension, unit = dimension_and_unit

    found = parse_quantity(f"{value!r} {unit}", dimension)

    assert found == value * UNITS[dimension][unit]


@given(text=st.text())
def test_any_text_gives_a_finite_quantity_or_a_unit_error(text: str) -> None:
    """Files hold anything; nothing but `UnitError` may come out of reading them."""
    try:
        found = parse_quantity(text, "s")
    except UnitError:
        return

    assert math.isfinite(found)
    assert found > 0


@given(size_bytes=st.floats(min_value=0, max_value=1e18))
def test_a_printed_size_reads_back(size_bytes: float) -> None:
    """Two decimals of a number of one or more lose half a hundredth; below, half a byte."""
    found = parse_quantity(format_bytes(size_bytes), "bytes", positive=False)

    assert found == pytest.approx(size_bytes, rel=0.005, abs=0.5)


@given(time_s=st.floats(min_value=1e-12, max_value=1e9))
def test_a_printed_time_reads_back(time_s: float) -> None:
    """Three significant digits are off by half a unit of the third at most."""
    found = parse_quantity(format_time(time_s), "s")

    assert found == pytest.approx(time_s, rel=0.005 + 1e-9)


@given(power_w=st.floats(min_value=1e-3, max_value=1e18))
def test_a_printed_quantity_reads_back(power_w: float) -> None:
    """As for times."""
    found = parse_quantity(format_quantity(power_w, "W"), "w")

    assert found == pytest.approx(power_w, rel=0.005 + 1e-9)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(1024), "1.00 KiB"),
        (format_bytes(-(2**30)), "-1.00 GiB"),
        (format_bytes(80 * 2**30), "80.00 GiB"),
        (format_bytes(3 * 2**50), "3072.00 TiB"),
        (format_time(0), "0 ns"),
        (format_time(3.2e-8), "32 ns"),
        (format_time(4.5e-6), "4.5 us"),
        (format_time(0.0125), "12.5 ms"),
        (format_time(1.234), "1.23 s"),
        (format_time(1500), "1500 s"),
        (format_time(0.99961), "1 s"),
        (format_time(999.96), "1000 s"),
        (format_quantity(999.96, "J"), "1 kJ"),
        (format_bytes(2**30 - 1), "1.00 GiB"),
        (quantity(999.96e6, "W"), "1 GW"),
        (count(999_999_999), "1 billion"),
        (count(999_999), "999,999"),
        (format_time(7200), "2.00 h"),
        (format_time(172_800), "2.00 d"),
        (format_quantity(700, "W"), "700 W"),
        (format_quantity(1_234_000, "W"), "1.23 MW"),
        (format_quantity(9.894e14, "FLOP/s"), "989 TFLOP/s"),
        (format_quantity(0, "J"), "0 J"),
    ],
)
def test_quantities_are_printed_as_people_write_them(found: str, expected: str) -> None:
    """The largest prefix that keeps the number at one or more."""
    assert found == expected


@each("dimension", sorted(UNITS))
def test_the_first_unit_of_a_dimension_is_an_example_that_reads(dimension: str) -> None:
    """Messages offer `1 <first unit>` as the example to follow."""
    example = f"1 {next(iter(UNITS[dimension]))}"

    assert parse_quantity(example, dimension) > 0


@pytest.mark.parametrize(("dimension", "unit"), DIMENSIONS_AND_UNITS)
def test_no_unit_has_characters_that_belong_to_numbers(dimension: str, unit: str) -> None:
    """`1e3` must never be one thousand or one `e3`, so no unit starts like an exponent."""
    assert re.match(r"[\d.,_+-]|[eE][+-]?\d", unit) is None, dimension


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "sequence", "1 sequence"),
        (0, "sample", "0 samples"),
        (1024, "batch", "1,024 batches"),
        (2, "strategy", "2 strategies"),
        (3, "rank class", "3 rank classes"),
    ],
)
def test_nouns_agree_with_their_number(number: int, noun: str, text: str) -> None:
    """'1 sequences' reads like a program."""
    assert counted(number, noun) == text
