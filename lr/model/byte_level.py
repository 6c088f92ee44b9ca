"""How byte-level tokenizers print bytes."""


def printable_bytes() -> dict[str, int]:
    """GPT-2's map from printable characters back to bytes. The 188 bytes that are
    printable in Latin-1 map to themselves; the other 68 are numbered from U+0100 on, in
    order. So the space (32), the 33rd of those, is U+0120, and the newline (10), the
    11th, is U+010A.
    """
    themselves = {
        *range(ord("!"), ord("~") + 1),
        *range(0xA1, 0xAC + 1),
        *range(0xAE, 0xFF + 1),
    }
    others = [byte for byte in range(256) if byte not in themselves]
    numbered = {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in themselves} | numbered
