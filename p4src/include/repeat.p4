// SPDX-License-Identifier: Apache-2.0
// Repetition by the preprocessor, as P4 has no loops.
//   FOR_EACH_VALUE(m)  m(0) ... m(BLOCK_SIZE - 1)
//   FOR_EACH_LANE(m)   m(0) ... m(LANES - 1)
//   FOR_EACH_PAIR(m)   m(i, i + BLOCK_SIZE / 2) for each value of the first half of a block of 64
#ifndef P4REDUCE_REPEAT_P4
#define P4REDUCE_REPEAT_P4

#define REPEAT_32(m) \
    m(0) m(1) m(2) m(3) m(4) m(5) m(6) m(7) \
    m(8) m(9) m(10) m(11) m(12) m(13) m(14) m(15) \
    m(16) m(17) m(18) m(19) m(20) m(21) m(22) m(23) \
    m(24) m(25) m(26) m(27) m(28) m(29) m(30) m(31)
#define REPEAT_64(m) REPEAT_32(m) \
    m(32) m(33) m(34) m(35) m(36) m(37) m(38) m(39) m(40) m(41) m(42) m(43) m(44) m(45) m(46) m(47) \
    m(48) m(49) m(50) m(51) m(52) m(53) m(54) m(55) m(56) m(57) m(58) m(59) m(60) m(61) m(62) m(63)
#define REPEAT_128(m) REPEAT_64(m) \
    m(64) m(65) m(66) m(67) m(68) m(69) m(70) m(71) m(72) m(73) m(74) m(75) m(76) m(77) m(78) m(79) \
    m(80) m(81) m(82) m(83) m(84) m(85) m(86) m(87) m(88) m(89) m(90) m(91) m(92) m(93) m(94) m(95) \
    m(96) m(97) m(98) m(99) m(100) m(101) m(102) m(103) m(104) m(105) m(106) m(107) m(108) m(109) m(110) m(111) \
    m(112) m(113) m(114) m(115) m(116) m(117) m(118) m(119) m(120) m(121) m(122) m(123) m(124) m(125) m(126) m(127)
#define REPEAT_256(m) REPEAT_128(m) \
    m(128) m(129) m(130) m(131) m(132) m(133) m(134) m(135) m(136) m(137) m(138) m(139) m(140) m(141) m(142) m(143) \
    m(144) m(145) m(146) m(147) m(148) m(149) m(150) m(151) m(152) m(153) m(154) m(155) m(156) m(157) m(158) m(159) \
    m(160) m(161) m(162) m(163) m(164) m(165) m(166) m(167) m(168) m(169) m(170) m(171) m(172) m(173) m(174) m(175) \
    m(176) m(177) m(178) m(179) m(180) m(181) m(182) m(183) m(184) m(185) m(186) m(187) m(188) m(189) m(190) m(191) \
    m(192) m(193) m(194) m(195) m(196) m(197) m(198) m(199) m(200) m(201) m(202) m(203) m(204) m(205) m(206) m(207) \
    m(208) m(209) m(210) m(211) m(212) m(213) m(214) m(215) m(216) m(217) m(218) m(219) m(220) m(221) m(222) m(223) \
    m(224) m(225) m(226) m(227) m(228) m(229) m(230) m(231) m(232) m(233) m(234) m(235) m(236) m(237) m(238) m(239) \
    m(240) m(241) m(242) m(243) m(244) m(245) m(246) m(247) m(248) m(249) m(250) m(251) m(252) m(253) m(254) m(255)

#define REPEAT_PAIRS_64(m) \
    m(0, 32) m(1, 33) m(2, 34) m(3, 35) m(4, 36) m(5, 37) m(6, 38) m(7, 39) \
    m(8, 40) m(9, 41) m(10, 42) m(11, 43) m(12, 44) m(13, 45) m(14, 46) m(15, 47) \
    m(16, 48) m(17, 49) m(18, 50) m(19, 51) m(20, 52) m(21, 53) m(22, 54) m(23, 55) \
    m(24, 56) m(25, 57) m(26, 58) m(27, 59) m(28, 60) m(29, 61) m(30, 62) m(31, 63)

#if BLOCK_SIZE == 32
#define FOR_EACH_VALUE(m) REPEAT_32(m)
#elif BLOCK_SIZE == 64
#define FOR_EACH_VALUE(m) REPEAT_64(m)
#define FOR_EACH_PAIR(m) REPEAT_PAIRS_64(m)
#elif BLOCK_SIZE == 128
#define FOR_EACH_VALUE(m) REPEAT_128(m)
#elif BLOCK_SIZE == 256
#define FOR_EACH_VALUE(m) REPEAT_256(m)
#else
#error "BLOCK_SIZE must be 32, 64, 128 or 256"
#endif

#if LANES == 1
#define FOR_EACH_LANE(m) m(0)
#elif LANES == 2
#define FOR_EACH_LANE(m) m(0) m(1)
#elif LANES == 4
#define FOR_EACH_LANE(m) m(0) m(1) m(2) m(3)
#elif LANES == 8
#define FOR_EACH_LANE(m) m(0) m(1) m(2) m(3) m(4) m(5) m(6) m(7)
#else
#error "LANES must be 1, 2, 4 or 8"
#endif

#endif
