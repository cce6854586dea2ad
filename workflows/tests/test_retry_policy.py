import unittest

from src.retry_policy import delay


class Delay(unittest.TestCase):
    def test_it_doubles_up_to_a_minute(self):
        self.assertEqual([delay(n) for n in range(8)], [1, 2, 4, 8, 16, 32, 60, 60])
