"""The group of Ed25519 (RFC 8032, section 5.1) with plain integers, to make signatures that libraries refuse to make.

It builds RedDSA keys, which are bare scalars, and signatures with a part of small order. It follows the definition
alone and shares no code with the tested module. It is slow and does not protect secrets.

    RedDSA   key       a in [1, L), A = aB                        (Ed25519: a is a clamped hash of a seed)
             signing   r = H(T | A | M), T of 80 random bytes     (Ed25519: r = H(half of the hashed seed | M))
             both      `R = rB`, `S = r + H(R | A | M) a mod L`; verifies if `S < L` and `SB = R + H(R | A | M) A`
"""

from dataclasses import dataclass
from hashlib import sha512

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE_D = -121665 * pow(121666, -1, PRIME) % PRIME
ROOT_OF_MINUS_ONE = pow(2, (PRIME - 1) // 4, PRIME)


@dataclass(frozen=True, slots=True)
class Point:
    """An affine point of -x² + y² = 1 + d x² y²."""

    x: int
    y: int

    def __add__(self, other: "Point") -> "Point":
        """Return the sum of both points. The formula is complete, without special cases."""
        product = CURVE_D * self.x * other.x * self.y * other.y % PRIME
        x = (self.x * other.y + self.y * other.x) * pow(1 + product, -1, PRIME) % PRIME
        y = (self.y * other.y + self.x * other.x) * pow(1 - product, -1, PRIME) % PRIME
        return Point(x, y)

    def __rmul__(self, scalar: int) -> "Point":
        result, power = NEUTRAL, self
        while scalar:
            if scalar & 1:
                result += power
            power += power
            scalar >>= 1
        return result

    def encode(self) -> bytes:
        """Return 32 bytes: y, with the lowest bit of x in the top bit."""
        return (self.y | (self.x & 1) << 255).to_bytes(32, "little")


NEUTRAL = Point(0, 1)


def point_at(y: int, sign: int) -> Point:
    """Return the point with this y and this lowest bit of x."""
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if x * x % PRIME != square:
        x = x * ROOT_OF_MINUS_ONE % PRIME
    assert x * x % PRIME == square, "no point has this y"
    return Point(x if x & 1 == sign else PRIME - x, y)


BASE = point_at(4 * pow(5, -1, PRIME) % PRIME, 0)
OF_ORDER_TWO = Point(0, PRIME - 1)


def challenge(commitment: bytes, public_key: bytes, message: bytes) -> int:
    """Return H(R | A | M) modulo L."""
    return int.from_bytes(sha512(commitment + public_key + message).digest(), "little") % ORDER


def red_dsa_sign(secret: int, public_key: bytes, message: bytes, randomness: bytes, shift: Point = NEUTRAL) -> bytes:
    """Return a RedDSA signature. `shift` is added to R; only the equation with the cofactor accepts the result."""
    nonce = int.from_bytes(sha512(randomness + public_key + message).digest(), "little") % ORDER
    commitment = (nonce * BASE + shift).encode()
    return commitment + ((nonce + challenge(commitment, public_key, message) * secret) % ORDER).to_bytes(32, "little")


def holds_with_cofactor(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Return True if the looser equation of RFC 8032 holds: 8SB = 8R + 8H(R | A | M)A."""
    commitment, scalar = signature[:32], int.from_bytes(signature[32:], "little")
    difference = decode(commitment) + challenge(commitment, public_key, message) * decode(public_key)
    return 8 * (scalar * BASE) == 8 * difference


def decode(encoding: bytes) -> Point:
    number = int.from_bytes(encoding, "little")
    return point_at(number & (1 << 255) - 1, number >> 255)
